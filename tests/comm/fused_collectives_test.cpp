// fused_all_reduce and fused_reduce_scatter: the kernel's buffers, costs and errors.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/comm/values.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::fused_collectives_test {
namespace {

using namespace shardwise::testing;
using base::Split;

constexpr int64_t kColumns = 3;

/// Returns copies of the first `numel` elements of every buffer.
std::vector<at::Tensor> copies(PeerBuffers buffers, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> result;
  for (const void* buffer : buffers) {
    result.push_back(at::empty({numel}, dtype));
    if (numel > 0) std::memcpy(result.back().mutable_data_ptr(), buffer, result.back().nbytes());
  }
  return result;
}

void expect_values(const std::vector<at::Tensor>& partials, at::IntArrayRef sizes, at::ScalarType dtype) {
  for (size_t rank = 0; rank < partials.size(); ++rank) {
    EXPECT_TRUE(equals(partials[rank].view(sizes), value(sizes, int(rank), dtype))) << "of rank " << rank;
  }
}

class FusedCollectives : public ::testing::TestWithParam<int> {};

TEST_P(FusedCollectives, PassEveryRanksInputInAnyLayout) {
  on_ranks(GetParam(), [&](Group group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t rows : {0, 1, 13, 2000}) {  // below and above the one-shot limit
        for (const InputLayout layout : kInputLayouts) {
          const at::Tensor x = with_layout(group, value({rows, kColumns}, group.rank(), dtype), layout);
          std::vector<at::Tensor> all_reduced, reduce_scattered;
          const auto copy_to = [&](std::vector<at::Tensor>& partials) {
            return [&](PeerBuffers buffers) { partials = copies(buffers, x.numel(), dtype); };
          };
          group.fused_all_reduce(x, copy_to(all_reduced));
          group.fused_reduce_scatter(x, Split::even("rows", rows, group.size()), copy_to(reduce_scattered));
          for (const auto& partials : {all_reduced, reduce_scattered}) {
            EXPECT_EQ(partials.size(), size_t(group.size()));
            expect_values(partials, x.sizes(), dtype);
          }
        }
      }
    }
  });
}

TEST_P(FusedCollectives, CountAsTheUnfusedCollectiveAndCopyNothing) {
  on_ranks(GetParam(), [&](Group group) {
    const int64_t rows = 2003, t = group.size(), item = 4;
    const Split split = Split::even("rows", rows, group.size());
    const at::Tensor in_heap = group.empty({rows, kColumns}, at::kFloat).fill_(1);
    const at::Tensor unregistered = at::full({rows, kColumns}, 1.f), few = at::full({3}, 1.f);
    const auto added = [&](const std::function<void()>& call) {
      const Counters before = group.counters();
      call();
      return group.counters() - before;
    };
    const auto ignore = [](PeerBuffers) {};
    Counters unfused = added([&] { group.all_reduce(unregistered); });
    Counters fused = added([&] { group.fused_all_reduce(in_heap, ignore); });
    EXPECT_EQ(fused[Op::all_reduce].calls, unfused[Op::all_reduce].calls);
    EXPECT_EQ(fused[Op::all_reduce].bytes, unfused[Op::all_reduce].bytes);
    EXPECT_EQ(fused.total(), fused[Op::all_reduce]);
    EXPECT_EQ(fused.total().copied_bytes, 0);
    unfused = added([&] { group.reduce_scatter(unregistered, split); });
    fused = added([&] { group.fused_reduce_scatter(in_heap, split, ignore); });
    EXPECT_EQ(fused[Op::reduce_scatter].calls, unfused[Op::reduce_scatter].calls);
    EXPECT_EQ(fused[Op::reduce_scatter].bytes, unfused[Op::reduce_scatter].bytes);
    EXPECT_EQ(fused.total(), fused[Op::reduce_scatter]);
    EXPECT_EQ(fused.total().copied_bytes, 0);
    const int64_t staged = t > 1;
    fused = added([&] { group.fused_all_reduce(unregistered, ignore); });
    EXPECT_EQ(fused.total().copied_bytes, staged * rows * kColumns * item);
    fused = added([&] { group.fused_all_reduce(few, ignore); });
    EXPECT_EQ(fused.total().copied_bytes, staged * 3 * item);
  });
}

// There is no departure barrier: each rank frees its input at once and overwrites whatever it allocates next.
TEST_P(FusedCollectives, MemoryIsNotReusedWhileAPeerReadsIt) {
  on_ranks(GetParam(), [&](Group group) {
    std::mt19937 delays(unsigned(group.rank())), sizes(7);
    for (int step = 0; step < 300; ++step) {
      const int64_t numel = 1 + sizes() % 3000;
      if (delays() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays() % 200));
      bool is_intact = true;
      {
        const at::Tensor x = group.empty({numel}, at::kFloat).fill_(float(step + 1000 * group.rank()));
        group.fused_all_reduce(x, [&](PeerBuffers buffers) {
          if (delays() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays() % 200));
          for (size_t rank = 0; rank < buffers.size(); ++rank) {
            const float* partial = static_cast<const float*>(buffers[rank]);
            for (int64_t i = 0; i < numel; ++i) is_intact &= partial[i] == float(step + 1000 * int(rank));
          }
        });
      }
      ASSERT_TRUE(is_intact) << step;
      group.empty({numel}, at::kFloat).fill_(-1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FusedCollectives, ::testing::Values(1, 2, 3, 4));

TEST(FusedCollectivesArguments, NeedASymmetricHeapAndAMatchingSplit) {
  on_ranks(2, [](Group group) {
    const at::Tensor x = at::full({4, 3}, 1.f);
    EXPECT_THROW(group.without_symmetric_heap().fused_all_reduce(x, [](PeerBuffers) {}), c10::ValueError);
    EXPECT_THROW(group.fused_reduce_scatter(x, Split::even("rows", 5, 2), [](PeerBuffers) {}),
                 c10::ValueError);
    group.barrier();  // the group still works
  });
}

// An exception of the kernel reaches the caller; the group still works.
TEST(FusedCollectivesKernel, MayThrow) {
  on_ranks(2, [](Group group) {
    const at::Tensor x = group.empty({5000}, at::kFloat).fill_(1);
    EXPECT_THROW(group.fused_all_reduce(x, [](PeerBuffers) { throw std::runtime_error("of the kernel"); }),
                 std::runtime_error);
    EXPECT_TRUE(equals(group.all_reduce(x), at::full({5000}, 2.f)));
  });
}

}  // namespace
}  // namespace shardwise::comm::fused_collectives_test
