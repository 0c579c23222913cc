#include <gtest/gtest.h>
#include <sched.h>

#include "shardwise/base/error.h"
#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::peer_info_test {
namespace {

/// Returns how the ranks disagree, without the error's code.
std::string told_disagreement(const PeerInfo& ours, const PeerInfo& theirs) {
  return base::without_code(disagreement(ours, theirs));
}

TEST(PeerInfo, RanksOfDifferentGroupsDisagree) {
  const PeerInfo ours = local_peer_info("tp", /*rank=*/0, /*size=*/2);
  PeerInfo peer = local_peer_info("tp", /*rank=*/1, /*size=*/2);
  EXPECT_EQ(told_disagreement(ours, peer), "");
  EXPECT_TRUE(ours.is_same_process(peer));
  peer.size = 3;
  EXPECT_EQ(told_disagreement(ours, peer), "rank 1 of 3 connected to a job of 2 ranks");
  peer.members = 1;
  EXPECT_EQ(told_disagreement(ours, peer),
            "rank 0 of the job creates group tp, rank 1 group tp of other ranks");
  peer = local_peer_info("dp", /*rank=*/1, /*size=*/2);
  EXPECT_EQ(told_disagreement(ours, peer), "rank 0 of the job creates group tp, rank 1 group dp");
}

TEST(PeerInfo, AMachineSharesTheCoresOfItsRanks) {
  std::vector<PeerInfo> ranks(3);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].machine = rank < 2 ? 7 : 8;
    CPU_SET(rank, &ranks[rank].cores);
    CPU_SET(5, &ranks[rank].cores);
  }
  EXPECT_EQ(machine_share(ranks, 7).ranks, 2);
  EXPECT_EQ(machine_share(ranks, 7).cores, 3);
  EXPECT_EQ(machine_share(ranks, 8).cores, 2);
}

// A container may hide the machine's id from one of them.
TEST(PeerInfo, RanksThatShareMemoryShareAMachine) {
  std::vector<shm::Handshake> ranks(2);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].info.peer.machine = rank;
    CPU_SET(rank, &ranks[rank].info.peer.cores);
    CPU_SET(5, &ranks[rank].info.peer.cores);
  }
  EXPECT_EQ(shm::usable_cores(ranks), 3);
}

}  // namespace
}  // namespace shardwise::comm::peer_info_test
