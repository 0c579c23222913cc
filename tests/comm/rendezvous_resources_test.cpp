// What a rendezvous does without descriptors or memory, and that it leaves none behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <fstream>

#include "shardwise/comm/shm/control.h"
#include "shardwise/comm/shm/introduction.h"
#include "shardwise/comm/shm/rendezvous.h"
#include "tests/comm/failures.h"
#include "tests/comm/process_resources.h"
#include "tests/comm/raw_socket.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/comm/workers.h"
#include "tests/support/error_text.h"

namespace shardwise::comm::rendezvous_resources_test {
namespace {

using namespace shardwise::testing;

/// Returns what each rank prints about a rendezvous in which one rank has only this many descriptors.
std::vector<std::string> rendezvous_short_of_descriptors(int ranks, int rank, int descriptors,
                                                         int timeout_ms = 20'000) {
  auto workers =
      start_workers("short " + std::to_string(rank) + " " + std::to_string(descriptors), ranks, timeout_ms);
  return outputs_of(workers);
}

TEST(RendezvousResources, LeavesNothingAfterManyGroups) {
  const int files = descriptors(), regions = mapped_regions();
  const std::set<std::string> named = named_memory();
  for (int i = 0; i < 200; ++i) {
    on_threads(2, [&](int rank, const std::string& job) {
      const Group group = shm::connect(options(job, rank, 2));
      at::Tensor x = group.empty({5000}, at::kFloat).fill_(1);
      group.all_reduce_(x);
    });
  }
  EXPECT_EQ(descriptors(), files);
  EXPECT_EQ(mapped_regions(), regions);
  EXPECT_EQ(named_memory(), named);
}

TEST(RendezvousResources, FailsAtOnceWithoutASocket) {
  const auto printed = rendezvous_short_of_descriptors(/*ranks=*/2, /*rank=*/1, /*descriptors=*/3, 2000);
  EXPECT_TRUE(says(printed[1], "cannot create a socket; Too many open files")) << printed[1];
}

// A rank needs one descriptor for its region, two to send, one for its socket, and two for each peer.
TEST(RendezvousResources, ARankShortOfDescriptorsFailsAtOnce) {
  for (const int descriptors : {5, 6, 8}) {
    const auto printed = rendezvous_short_of_descriptors(/*ranks=*/3, /*rank=*/2, descriptors);
    EXPECT_TRUE(says(printed[2], "rank 2 has no descriptors left for the memory of rank")) << printed[2];
    EXPECT_TRUE(says(printed[2], "by `ulimit -n`")) << printed[2];
    for (const size_t peer : {0, 1}) {  // rank 0 may still be sending when rank 2 has disconnected
      EXPECT_TRUE(says(printed[peer], "rank 2 aborted: connect #0: rank 2 has no descriptors left") ||
                  says(printed[peer], "rank 2 disconnected before all ranks had connected"))
          << printed[peer];
    }
  }
  for (const std::string& printed :
       rendezvous_short_of_descriptors(/*ranks=*/3, /*rank=*/2, /*descriptors=*/10))
    EXPECT_TRUE(says(printed, "\nconnected\n")) << printed;
}

TEST(RendezvousResources, RankZeroShortOfDescriptorsRejectsThePeers) {
  const std::pair<int, const char*> cases[] = {
      {4, "cannot accept a socket; Too many open files"},
      {5, "rank 0 has no descriptors left for the memory of rank 1"},
      {6, "rank 0 has no descriptors left for the memory of rank 1"}};
  for (const auto& [descriptors, reason] : cases) {
    const auto printed = rendezvous_short_of_descriptors(/*ranks=*/2, /*rank=*/0, descriptors);
    EXPECT_TRUE(says(printed[0], reason)) << printed[0];
    EXPECT_TRUE(says(printed[1], "rank 0 aborted the rendezvous")) << printed[1];
  }
}

TEST(RendezvousResources, ALimitOnFileSizesIsAnErrorAndNoSignal) {
  Worker rank("small_files", new_job(), /*rank=*/0, /*size=*/2, /*timeout_ms=*/20'000);
  const std::string printed = rank.output();
  EXPECT_TRUE(says(printed, "shared memory: ftruncate to")) << printed;
  EXPECT_TRUE(says(printed, "bytes; File too large [SW0128]")) << printed;
  EXPECT_TRUE(WIFEXITED(rank.wait()));
}

/// Limits this process's address space, while it lives, to what is in use and `more` bytes.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(size_t more) {
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    EXPECT_EQ(getrlimit(RLIMIT_AS, &before_), 0);
    const rlimit limit{pages * size_t(sysconf(_SC_PAGESIZE)) + more, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~AddressSpaceLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

// The peers map it, too.
TEST(RendezvousResources, ALimitOnTheAddressSpaceMakesTheHeapsSmaller) {
  constexpr size_t kMore = size_t{1} << 30;
  const AddressSpaceLimit limit(kMore);
  const shm::Region region = shm::Region::create(/*ranks=*/2);
  EXPECT_GE(region.bytes() - shm::kHeapOffset, kMore / 8);
  EXPECT_LE(region.bytes() - shm::kHeapOffset, kMore / 2);
}

/// Returns the file of a region that no process can map.
base::Fd boundless_file(size_t bytes) {
  base::Fd file(memfd_create("boundless", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), off_t(bytes)), 0);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return file;
}

// Such as for lack of address space. Rank 1, which the test plays, could otherwise wait for it in the group.
TEST(RendezvousResources, ARankThatCannotMapAPeersMemoryAborts) {
  constexpr size_t kBytes = size_t{1} << 60;
  const std::string job = new_job();
  std::string error;
  std::thread rank_0(
      [&] { error = test::error_text<c10::Error>([&] { shm::connect(options(job, 0, 2)); }); });
  RawSocket rank_1(job);
  rank_1.wait_and_connect();
  EXPECT_TRUE(shm::introduce(rank_1.fd(), {job, 1, 2}, ConnectDeadline(1, std::chrono::seconds(20))));
  const shm::Region region = shm::Region::create(2);
  shm::Handshake handshake = shm::make_handshake({job, 1, 2}, region);
  handshake.region = boundless_file(kBytes);
  handshake.info.region_bytes = kBytes;
  EXPECT_EQ(shm::send_handshake(rank_1.fd(), handshake), 0);
  shm::Handshake received = shm::receive_handshake(rank_1.fd()).handshake;
  rank_0.join();
  const std::string reason = "shared memory: cannot map " + std::to_string(kBytes) + " bytes; ";
  EXPECT_TRUE(says(error, reason)) << error;
  const shm::Region of_rank_0 = shm::Region::map(std::move(received.region), received.info.region_bytes);
  EXPECT_EQ(of_rank_0.control().abort.peer, 0);
  EXPECT_TRUE(says(of_rank_0.control().abort.reason, "rank 0 aborted: " + reason));
}

// Their receivers receive the descriptors in flight: the rendezvous retries until there is room.
TEST(RendezvousResources, WaitsWhileTheUserHasTooManyDescriptorsInFlight) {
  Worker ranks("crowded 200", new_job(), /*rank=*/0, /*size=*/2, /*timeout_ms=*/20'000);
  const std::string printed = ranks.output();
  EXPECT_TRUE(says(printed, "\nconnected\nconnected\n")) << printed;
  Worker late("crowded 2000", new_job(), /*rank=*/0, /*size=*/2, /*timeout_ms=*/1000);
  const std::string errors = late.output();
  EXPECT_TRUE(says(errors, "cannot send to rank 0; Too many references: cannot splice")) << errors;
}

}  // namespace
}  // namespace shardwise::comm::rendezvous_resources_test
