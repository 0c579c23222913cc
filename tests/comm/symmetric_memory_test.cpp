// c10d's symmetric memory from C++: buffers and signal pads that all ranks access, and signals. Errors are in
// symmetric_failure_test.cpp.
#include <ATen/ops/arange.h>

#include <random>
#include <thread>

#include "shardwise/base/clock.h"
#include "tests/comm/process_resources.h"
#include "tests/comm/symmetric_heap.h"
#include "tests/comm/values.h"
#include "tests/support/deadline.h"

namespace shardwise::comm::shm::symmetric_memory_test {
namespace {

using namespace shardwise::testing;

bool all_are(const at::Tensor& x, double value) {
  return x.eq(value).all().item<bool>();
}

bool is_zero(const SymmetricHandle& handle, int rank) {
  return all_are(handle->get_signal_pad(rank, {}, at::kByte), 0);
}

TEST(SymmetricMemory, EveryRankReadsAndWritesEveryBuffer) {
  for (const int ranks : {1, 2, 3}) {
    on_registered(ranks, [&](Backend& backend, int rank) {
      const at::Tensor x = symmetric(1000, rank);
      const SymmetricHandle handle = rendezvous_over(x);
      EXPECT_EQ(handle->get_rank(), rank);
      EXPECT_EQ(handle->get_world_size(), ranks);
      EXPECT_EQ(handle->get_buffer_size(), 4000u);
      EXPECT_EQ(handle->get_buffer_ptrs()[size_t(rank)], x.data_ptr());
      for (int peer = 0; peer < ranks; ++peer) {
        EXPECT_TRUE(all_are(buffer_of(handle, peer), peer));
        EXPECT_EQ(handle->get_buffer_ptrs_dev()[peer], handle->get_buffer_ptrs()[size_t(peer)]);
        EXPECT_EQ(handle->get_signal_pad_ptrs_dev()[peer], handle->get_signal_pad_ptrs()[size_t(peer)]);
      }
      handle->barrier(0, 0);
      const int next = (rank + 1) % ranks;
      handle->get_buffer(next, {2}, at::kFloat, /*storage_offset=*/998).fill_(10 + rank);
      handle->barrier(0, 0);
      EXPECT_TRUE(all_are(x.narrow(0, 998, 2), 10 + (rank + ranks - 1) % ranks));
      EXPECT_TRUE(all_are(x.narrow(0, 0, 998), rank));
      backend.barrier({})->wait();
      EXPECT_TRUE(is_zero(handle, rank));
      backend.barrier({})->wait();
    });
  }
}

// What torch's kernels ask a handle and its allocator before they choose an algorithm.
TEST(SymmetricMemory, DescribesItsMemory) {
  on_registered(2, [](Backend&, int) {
    const at::Tensor x = symmetric(1000, 0);
    const SymmetricHandle handle = rendezvous_over(x);
    EXPECT_EQ(handle->get_offset(), 0u);
    EXPECT_EQ(handle->get_device(), c10::Device(c10::kCPU));
    EXPECT_TRUE(handle->world_within_direct_access());
    EXPECT_FALSE(handle->has_multicast_support());
    EXPECT_EQ(handle->get_multicast_ptr(), nullptr);
    const auto allocator = c10d::symmetric_memory::get_allocator(c10::kCPU);
    EXPECT_EQ(allocator->get_alloc_size(x.data_ptr()), 4000u);
    EXPECT_FALSE(allocator->has_multicast_support(/*device_idx=*/0));
  });
}

TEST(SymmetricMemory, ZeroBytesStillHaveSignals) {
  on_registered(2, [](Backend&, int rank) {
    const SymmetricHandle handle = rendezvous_over(symmetric(0, 0));
    EXPECT_EQ(handle->get_buffer_size(), 0u);
    handle->put_signal(1 - rank, 0, 0);
    handle->wait_signal(1 - rank, 0, 0);
  });
}

// Ranks reach barriers at random times. A read too early would see a value of the previous round; a write too
// early would change a value of this round.
TEST(SymmetricMemory, ABarrierSeparatesWritesFromReads) {
  for (const int ranks : {2, 4}) {
    on_registered(ranks, [&](Backend&, int rank) {
      const at::Tensor x = symmetric(64, -1);
      const SymmetricHandle handle = rendezvous_over(x);
      std::mt19937 random(unsigned(rank) + 1);
      for (int round = 0; round < 100; ++round) {
        const int channel = round % 3;
        if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        x.fill_(round);
        handle->barrier(channel, 0);
        for (int peer = 0; peer < ranks; ++peer) ASSERT_TRUE(all_are(buffer_of(handle, peer), round));
        handle->barrier(channel, 0);
      }
    });
  }
}

TEST(SymmetricMemory, ASignalIsAWordOfThePadByChannelAndSender) {
  on_registered(3, [](Backend& backend, int rank) {
    const SymmetricHandle handle = rendezvous_over(symmetric(4, 0));
    if (rank == 2) handle->put_signal(/*dst_rank=*/0, /*channel=*/5, 0);
    backend.barrier({})->wait();
    if (rank == 0) {
      const at::Tensor words = handle->get_signal_pad(0, {10, 3}, at::kInt);
      EXPECT_EQ(words.sum().item<int64_t>(), 1);
      EXPECT_EQ(words[5][2].item<int64_t>(), 1);
      handle->wait_signal(/*src_rank=*/2, /*channel=*/5, 0);
      EXPECT_EQ(words.sum().item<int64_t>(), 0);
    }
    backend.barrier({})->wait();
  });
}

// The producer may be at most one signal ahead, because a signal is one word.
TEST(SymmetricMemory, SignalsSynchronizeAPipeline) {
  on_registered(2, [](Backend&, int rank) {
    const at::Tensor x = symmetric(2 * 32, -1);
    const SymmetricHandle handle = rendezvous_over(x);
    for (int item = 0; item < 300; ++item) {
      const int64_t half = item % 2;
      if (rank == 0) {
        if (item >= 2) handle->wait_signal(1, int(2 + half), 0);  // the consumer has finished with this half
        handle->get_buffer(1, {32}, at::kFloat, half * 32).fill_(item);
        handle->put_signal(1, int(half), 0);
      } else {
        handle->wait_signal(0, int(half), 0);
        ASSERT_TRUE(all_are(x.narrow(0, half * 32, 32), item));
        handle->put_signal(0, int(2 + half), 0);
      }
    }
  });
}

TEST(SymmetricMemory, ASignalWaitsUntilThePreviousOneIsConsumed) {
  static std::atomic<bool> is_consumed;
  is_consumed = false;
  on_registered(2, [](Backend&, int rank) {
    const SymmetricHandle handle = rendezvous_over(symmetric(4, 0));
    if (rank == 0) {
      handle->put_signal(1, 0, 0);
      handle->put_signal(1, 0, 0);
      EXPECT_TRUE(is_consumed);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      is_consumed = true;
      handle->wait_signal(0, 0, 0);
      handle->wait_signal(0, 0, 0);
    }
    handle->barrier(0, 0);
  });
}

TEST(SymmetricMemory, EachTensorHasItsOwnSignals) {
  on_registered(2, [](Backend&, int rank) {
    const at::Tensor x = symmetric(10, rank), y = symmetric(3000, 10 + rank);
    const SymmetricHandle of_x = rendezvous_over(x), of_y = rendezvous_over(y);
    EXPECT_TRUE(all_are(buffer_of(of_x, 1 - rank), 1 - rank));
    EXPECT_TRUE(all_are(buffer_of(of_y, 1 - rank), 11 - rank));
    of_x->put_signal(1 - rank, 0, 0);
    of_y->barrier(0, 0);
    EXPECT_EQ(of_x->get_signal_pad(rank, {2}, at::kInt)[1 - rank].item<int64_t>(), 1);
    EXPECT_TRUE(is_zero(of_y, rank));
    of_x->wait_signal(1 - rank, 0, 0);
  });
}

TEST(SymmetricMemory, ASecondRendezvousReturnsTheHandleOfTheFirst) {
  on_registered(2, [](Backend& backend, int) {
    const at::Tensor x = symmetric(10, 0);
    const SymmetricHandle first = rendezvous_over(x);
    const uint64_t sequence = backend.getSequenceNumberForGroup();
    EXPECT_EQ(rendezvous_over(x), first);
    EXPECT_EQ(c10d::symmetric_memory::rendezvous(x), first);  // over its home group
    EXPECT_EQ(backend.getSequenceNumberForGroup(), sequence);
  });
}

/// Connects the group of ranks 2 and 0, in this order.
c10::intrusive_ptr<Backend> pair_of_three(const std::string& job, int rank) {
  const ConnectOptions pair = options(job, rank == 2 ? 0 : 1, 2);
  return c10::make_intrusive<Backend>(std::make_shared<Transport>(rendezvous(pair), pair.rank, pair.timeout));
}

/// Runs `body` on these two ranks, with group "pair" next to the default group of three.
void on_pair_of_three(const std::function<void(Backend& pair, int rank)>& body) {
  const std::string job = new_job();
  on_registered(3, [&](Backend& backend, int rank) {
    if (rank != 1) {
      const auto pair = pair_of_three(job, rank);
      const Registered group("pair", pair);
      body(*pair, pair->getRank());
    }
    backend.barrier({})->wait();
  });
}

TEST(SymmetricMemory, TensorOfTheDefaultGroupIsUsableBySubgroups) {
  on_pair_of_three([](Backend&, int rank) {
    const at::Tensor x = symmetric(1000, 5 + rank);
    const SymmetricHandle handle = rendezvous_over(x, "pair");
    EXPECT_EQ(handle->get_rank(), rank);
    EXPECT_EQ(handle->get_world_size(), 2);
    EXPECT_TRUE(all_are(buffer_of(handle, 1 - rank), 6 - rank));
    handle->barrier(1, 0);
    for (int round = 0; round < 100; ++round) {
      x.fill_(round);
      handle->barrier(1, 0);
      ASSERT_TRUE(all_are(buffer_of(handle, 1 - rank), round));
      handle->barrier(1, 0);
    }
  });
}

// Rank 1 waits at the barrier of all three ranks while the others still use the pair's barrier.
TEST(SymmetricMemory, AGroupDoesNotConsumeTheSignalsOfAnother) {
  static std::atomic<int> arrived;
  arrived = 0;
  const std::string job = new_job();
  on_registered(3, [&](Backend&, int rank) {
    const at::Tensor x = symmetric(10, rank);
    const SymmetricHandle of_all = rendezvous_over(x);
    if (rank != 1) {
      const auto pair = pair_of_three(job, rank);
      const Registered group("pair", pair);
      const SymmetricHandle of_pair = rendezvous_over(x, "pair");
      std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 100 : 30));
      ++arrived;
      of_pair->barrier(0, 0);
      EXPECT_EQ(arrived, 2);
    }
    of_all->barrier(0, 0);
    EXPECT_EQ(arrived, 2);
  });
}

// Rank 0 puts the signal through the group of all, and rank 2 sleeps in a wait of the pair.
TEST(SymmetricMemory, ASignalWakesTheWaitOfAnotherGroup) {
  const std::string job = new_job();
  on_registered(3, [&](Backend& backend, int rank) {
    const at::Tensor x = symmetric(10, rank);
    const SymmetricHandle of_all = rendezvous_over(x);
    if (rank != 1) {
      const auto pair = pair_of_three(job, rank);
      const Registered group("pair", pair);
      const SymmetricHandle of_pair = rendezvous_over(x, "pair");
      if (rank == 2) of_pair->wait_signal(/*src_rank=*/1, 0, 0);  // rank 0 of all
      const auto& sleepers = backend.transport()->channel().control(2).doorbell.sleepers;
      const base::Stopwatch since_start;
      while (rank == 0 && sleepers.load() == 0) ASSERT_LT(since_start.seconds(), scaled_s(10));
      if (rank == 0) of_all->put_signal(/*dst_rank=*/2, 0, 0);
    }
    backend.barrier({})->wait();
  });
}

TEST(SymmetricMemory, TensorOfAGroupIsReducedInPlaceByItsCollectives) {
  on_pair_of_three([](Backend& pair, int rank) {
    Tensors of_pair = {symmetric(5000, rank, "pair")}, of_all = {symmetric(5000, rank)};
    const int64_t before = pair.transport()->copied_bytes();
    pair.allreduce(of_pair, {})->wait();
    const int64_t in_place = pair.transport()->copied_bytes() - before;
    pair.allreduce(of_all, {})->wait();
    EXPECT_EQ(in_place, 5000 / 2 * 4);
    EXPECT_EQ(pair.transport()->copied_bytes() - before - in_place, 20'000);  // not in the pair's heap
    EXPECT_TRUE(all_are(of_pair[0], 1) && all_are(of_all[0], 1));
    const SymmetricHandle handle = rendezvous_over(of_pair[0], "pair");
    EXPECT_TRUE(all_are(buffer_of(handle, 1 - rank), 1));
    handle->barrier(0, 0);
  });
}

TEST(SymmetricMemory, IsQuarantinedWhenTensorAndHandleAreDestroyed) {
  on_registered(2, [](Backend& backend, int rank) {
    const std::shared_ptr<Heap> heap = backend.transport()->channel().heap();
    at::Tensor x = symmetric(1000, 1);
    void* address = x.data_ptr();
    SymmetricHandle handle = rendezvous_over(x);
    handle->put_signal(1 - rank, 0, 0);  // and no rank consumes it
    backend.barrier({})->wait();
    const int64_t live = heap->live_bytes();
    EXPECT_GE(live, 4000 + int64_t(c10d::symmetric_memory::get_signal_pad_size()));
    x = at::Tensor();
    EXPECT_EQ(heap->live_bytes(), live);
    handle.reset();
    EXPECT_EQ(heap->live_bytes(), 0);
    EXPECT_NE(symmetric(1000, 1).data_ptr(), address);  // peers may still read it
    backend.barrier({})->wait();
    x = symmetric(1000, 1);
    EXPECT_EQ(x.data_ptr(), address);
    EXPECT_TRUE(is_zero(rendezvous_over(x), rank));
    backend.barrier({})->wait();
  });
}

TEST(SymmetricMemory, LeavesNothingBehind) {
  const auto use = [] {
    on_registered(2, [](Backend&, int) {
      const at::Tensor x = symmetric(1000, 1);
      rendezvous_over(x)->barrier(0, 0);
    });
  };
  use();
  const int files = descriptors(), regions = mapped_regions();
  for (int i = 0; i < 5; ++i) use();
  EXPECT_EQ(descriptors(), files);
  EXPECT_EQ(mapped_regions(), regions);
}

}  // namespace
}  // namespace shardwise::comm::shm::symmetric_memory_test
