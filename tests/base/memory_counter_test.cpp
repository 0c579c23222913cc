#include "shardwise/base/memory_counter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace shardwise::base::memory_counter_test {
namespace {

class MemoryCounter : public testing::Test {
 protected:
  MemoryCounter() {
    install_memory_counter();
    before_ = live_bytes();
    reset_peak();
  }
  int64_t held() const { return live_bytes() - before_; }
  int64_t most_held() const { return peak_bytes() - before_; }
  c10::Allocator& allocator() const { return *c10::GetAllocator(c10::kCPU); }

 private:
  int64_t before_;
};

TEST_F(MemoryCounter, CountsRequestedBytes) {
  {
    const c10::Storage small(c10::Storage::use_byte_size_t(), 100, &allocator(), /*resizable=*/false);
    EXPECT_EQ(held(), 100);
    {
      const c10::Storage large(c10::Storage::use_byte_size_t(), 1 << 20, &allocator(), /*resizable=*/false);
      std::memset(large.mutable_data(), 7, 1 << 20);
      EXPECT_EQ(held(), 100 + (1 << 20));
    }
    EXPECT_EQ(held(), 100);
    EXPECT_EQ(most_held(), 100 + (1 << 20));
    reset_peak();
    EXPECT_EQ(most_held(), 100);
  }
  EXPECT_EQ(held(), 0);
}

TEST_F(MemoryCounter, AlignsBlocks) {
  for (const size_t bytes : {1, 63, 64, 65, 4097}) {
    const c10::DataPtr data = allocator().allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data.get()) % c10::gAlignment, 0u) << bytes;
  }
}

TEST_F(MemoryCounter, EmptyAllocationsAreNull) {
  const c10::DataPtr data = allocator().allocate(0);
  EXPECT_EQ(data.get(), nullptr);
  void* raw = allocator().raw_allocate(0);
  allocator().raw_deallocate(raw);
  EXPECT_EQ(held(), 0);
  EXPECT_EQ(most_held(), 0);
}

TEST_F(MemoryCounter, CountsRawAllocations) {
  void* raw = allocator().raw_allocate(48);
  std::memset(raw, 1, 48);
  EXPECT_EQ(held(), 48);
  allocator().raw_deallocate(raw);
  EXPECT_EQ(held(), 0);
}

TEST_F(MemoryCounter, ClonesHaveEqualBytes) {
  const c10::DataPtr data = allocator().allocate(16);
  std::memcpy(data.get(), "0123456789abcdef", 16);
  EXPECT_TRUE(allocator().is_simple_data_ptr(data));
  const c10::DataPtr copy = allocator().clone(data.get(), 16);
  EXPECT_EQ(std::memcmp(copy.get(), "0123456789abcdef", 16), 0);
  EXPECT_EQ(held(), 32);
}

TEST_F(MemoryCounter, CountsAllThreads) {
  std::vector<c10::DataPtr> blocks(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t, &blocks] {
      for (int i = 1; i <= 1000; ++i) blocks[t] = allocator().allocate(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(held(), 4 * 1000);
  EXPECT_GE(most_held(), 4 * 1000);
  EXPECT_LE(most_held(), 4 * (1000 + 999));  // each thread frees the old block after allocating the new one
}

TEST_F(MemoryCounter, InstallingTwiceHasNoEffect) {
  c10::Allocator* first = &allocator();
  install_memory_counter();
  EXPECT_EQ(&allocator(), first);
}

}  // namespace
}  // namespace shardwise::base::memory_counter_test
