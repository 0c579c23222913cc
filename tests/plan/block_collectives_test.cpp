// The table of a block's collectives against the communication that it is made of.
#include "shardwise/plan/block_collectives.h"

#include <gtest/gtest.h>

#include "shardwise/plan/communication.h"

namespace shardwise::plan::block_collectives_test {
namespace {

// 65 tokens on 3 ranks: 22, 22 and 21, so that the ranks send different bytes.
TEST(BlockCollectives, HaveTheCallsAndBytesOfEveryRank) {
  Workload workload;
  workload.config = config::preset("tiny");
  workload.tp = 3;
  workload.sequence_length = 65;
  workload.batch_size = 2;
  for (const Parallelism mode : {Parallelism::tp, Parallelism::tp_sp}) {
    workload.parallelism = mode;
    const std::vector<BlockCollective> listed = block_collectives(workload);
    ASSERT_EQ(listed.size(), mode == Parallelism::tp ? 2u : 4u);
    for (int rank = 0; rank < workload.tp; ++rank) {
      Traffic forward, backward;
      for (const BlockCollective& one : listed) {
        Traffic& pass = one.is_backward ? backward : forward;
        pass = {pass.calls + one.calls, pass.bytes + one.bytes.at(size_t(rank))};
      }
      const Passes passes = block_communication(workload, rank, /*layer=*/0);
      EXPECT_EQ(forward, passes.forward.total()) << rank;
      EXPECT_EQ(backward, passes.backward.total()) << rank;
    }
  }
}

TEST(BlockCollectives, OfOneRankAreNone) {
  Workload workload;
  workload.config = config::preset("tiny");
  workload.sequence_length = 8;
  workload.batch_size = 1;
  EXPECT_TRUE(block_collectives(workload).empty());
}

}  // namespace
}  // namespace shardwise::plan::block_collectives_test
