// The heap allocator: alignment, coalescing, quarantine, growth, errors, and a model of the blocks in use.
#include "shardwise/comm/shm/heap.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <random>

namespace {

// Simulates a profiler's timer before Linux 6.11, where a signal interrupts fallocate and undoes its work:
// calls for more bytes than this never succeed. 0 disables the simulation.
off_t max_uninterrupted = 0;
int interruptions = 0;

}  // namespace

// Replaces libc's function.
int fallocate(int file, int mode, off_t begin, off_t bytes) {
  if (max_uninterrupted == 0 || bytes <= max_uninterrupted)
    return int(syscall(SYS_fallocate, file, mode, begin, bytes));
  errno = ++interruptions < 1000 ? EINTR : EIO;  // a caller that never shrinks its calls must fail, not hang
  return -1;
}

namespace shardwise::comm::shm::heap_test {
namespace {

class HeapTest : public ::testing::Test {
 protected:
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
  Heap heap{Region::create(2), progress};

  /// Completes a collective on all ranks.
  void pass() { progress->passed = ++progress->started; }
};

TEST_F(HeapTest, AlignsBlocksAndCountsLogicalBytes) {
  std::byte* a = heap.allocate(1);
  std::byte* b = heap.allocate(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(b - a, 64);
  EXPECT_EQ(heap.live_bytes(), 101);
  heap.free(a, 1);
  EXPECT_EQ(heap.live_bytes(), 100);
  EXPECT_EQ(heap.peak_bytes(), 101);
  heap.reset_peak();
  EXPECT_EQ(heap.peak_bytes(), 100);
  heap.free(b, 100);
}

TEST_F(HeapTest, AFreedBlockIsReusedOnlyAfterALaterCollective) {
  ++progress->started;  // a collective that peers may still be in
  std::byte* a = heap.allocate(128);
  heap.free(a, 128);
  EXPECT_NE(heap.allocate(128), a);
  progress->passed = 1;  // this collective's own arrival barrier is not enough: peers may still read
  EXPECT_NE(heap.allocate(128), a);
  ++progress->started;  // posted, but the arrival barrier is not complete
  EXPECT_NE(heap.allocate(128), a);
  progress->passed = 2;
  EXPECT_EQ(heap.allocate(128), a);
}

TEST_F(HeapTest, CoalescesNeighborsInAnyOrder) {
  std::byte* blocks[3];
  for (std::byte*& block : blocks) block = heap.allocate(1000);
  std::byte* wall = heap.allocate(64);
  for (const int i : {0, 2, 1}) heap.free(blocks[i], 1000);
  pass();
  EXPECT_EQ(heap.allocate(3 * 1024), blocks[0]);
  EXPECT_GT(wall, blocks[2]);
}

TEST_F(HeapTest, ABlockFreedAtOnceIsReusedAtOnce) {
  ++progress->started;  // an unrelated collective
  std::byte* a = heap.allocate(128);
  heap.free_at_once(a, 128);
  EXPECT_EQ(heap.live_bytes(), 0);
  EXPECT_EQ(heap.allocate(128), a);
}

TEST_F(HeapTest, AllocatesTheSmallestBlockThatFits) {
  std::byte* large = heap.allocate(4096);
  heap.allocate(64);
  std::byte* small = heap.allocate(512);
  heap.allocate(64);
  heap.free(large, 4096);
  heap.free(small, 512);
  pass();
  EXPECT_EQ(heap.allocate(512), small);
  EXPECT_EQ(heap.allocate(64), large);
}

TEST_F(HeapTest, OutOfMemoryNamesTheBytes) {
  const int64_t too_much = int64_t(heap.region().bytes()) + 1;
  try {
    heap.allocate(too_much);
    FAIL();
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string((too_much + 63) / 64 * 64)), std::string::npos);
  }
  EXPECT_EQ(heap.live_bytes(), 0);
  std::memset(heap.allocate(1 << 20), 1, 1 << 20);  // and the heap still works
}

TEST(RegionTest, AFailedCommitReleasesItsPages) {
  const Region region = Region::create(2);
  const auto backed = [&] {
    struct stat status {};
    fstat(region.file(), &status);
    return status.st_blocks;
  };
  const auto before = backed();
  const size_t most = region.bytes();  // the file's end is sealed
  EXPECT_THROW(region.commit(most - (size_t{8} << 20), most + (size_t{8} << 20)), c10::OutOfMemoryError);
  EXPECT_EQ(backed(), before);
}

TEST_F(HeapTest, AllocatesALargeBlockUnderPeriodicSignals) {
  max_uninterrupted = 256 << 10;
  const int64_t bytes = int64_t{512} << 20;
  const std::byte* block = heap.allocate(bytes);
  max_uninterrupted = 0;
  EXPECT_EQ(block[bytes - 1], std::byte{0});
}

// Random sizes and lifetimes, with a pattern in every block that an overlap would destroy.
TEST_F(HeapTest, LiveBlocksNeverOverlap) {
  struct Used {
    std::byte* data;
    int64_t bytes;
    std::byte pattern;
  };
  std::mt19937 random(3);
  std::list<Used> used;
  const auto check_and_free = [&](std::list<Used>::iterator block) {
    for (int64_t i = 0; i < block->bytes; ++i) ASSERT_EQ(block->data[i], block->pattern);
    heap.free(block->data, block->bytes);
    used.erase(block);
  };
  for (int step = 0; step < 5000; ++step) {
    if (random() % 4 == 0) pass();
    if (random() % 2 == 0 || used.empty()) {
      const int64_t bytes = int64_t(random() % (random() % 8 == 0 ? 40'000 : 400)) + 1;
      used.push_back({heap.allocate(bytes), bytes, std::byte(random())});
      std::memset(used.back().data, int(used.back().pattern), size_t(bytes));
    } else {
      check_and_free(std::next(used.begin(), int64_t(random() % used.size())));
    }
  }
  while (!used.empty()) check_and_free(used.begin());
  EXPECT_EQ(heap.live_bytes(), 0);
  pass();
  EXPECT_EQ(heap.allocate(64), heap.region().base() + kHeapOffset);  // the heap is one free block again
}

}  // namespace
}  // namespace shardwise::comm::shm::heap_test
