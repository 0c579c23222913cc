// The terms of a sum over the ranks, shown where they lie: whose they are, what that costs, how it fails.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/comm/values.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::terms_test {
namespace {

using namespace shardwise::testing;
using base::Split;

constexpr int64_t kColumns = 3;

/// Copies of the first `numel` elements of every term.
std::vector<at::Tensor> copies(PeerBuffers terms, int64_t numel, at::ScalarType dtype) {
  std::vector<at::Tensor> result;
  for (const void* term : terms) {
    result.push_back(at::empty({numel}, dtype));
    if (numel > 0) std::memcpy(result.back().mutable_data_ptr(), term, result.back().nbytes());
  }
  return result;
}

void expect_values(const std::vector<at::Tensor>& terms, at::IntArrayRef sizes, at::ScalarType dtype) {
  for (size_t rank = 0; rank < terms.size(); ++rank) {
    EXPECT_TRUE(equals(terms[rank].view(sizes), value(sizes, int(rank), dtype))) << "of rank " << rank;
  }
}

class TermsOf : public ::testing::TestWithParam<int> {};

TEST_P(TermsOf, AreEveryRanksWhereverTheInputLies) {
  on_ranks(GetParam(), [&](Group group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const int64_t rows : {0, 1, 13, 2000}) {  // below and above what goes with the announcement
        for (const Layout layout : kLayouts) {
          const at::Tensor x = laid_out(group, value({rows, kColumns}, group.rank(), dtype), layout);
          std::vector<at::Tensor> all, own;
          const auto into = [&](std::vector<at::Tensor>& terms) {
            return [&](PeerBuffers shown) { terms = copies(shown, x.numel(), dtype); };
          };
          group.fused_all_reduce(x, into(all));
          group.fused_reduce_scatter(x, Split::even("rows", rows, group.size()), into(own));
          for (const auto& terms : {all, own}) {
            EXPECT_EQ(terms.size(), size_t(group.size()));
            expect_values(terms, x.sizes(), dtype);
          }
        }
      }
    }
  });
}

TEST_P(TermsOf, AreCountedAsTheCollectiveTheyStandForAndCopyNothing) {
  on_ranks(GetParam(), [&](Group group) {
    const int64_t rows = 2003, t = group.size(), item = 4;
    const Split split = Split::even("rows", rows, group.size());
    const at::Tensor in_arena = group.empty({rows, kColumns}, at::kFloat).fill_(1);
    const at::Tensor foreign = at::full({rows, kColumns}, 1.f), few = at::full({3}, 1.f);
    const auto added = [&](const std::function<void()>& call) {
      const Counters before = group.counters();
      call();
      return group.counters() - before;
    };
    const auto ignore = [](PeerBuffers) {};
    Counters sum = added([&] { group.all_reduce(foreign); });
    Counters terms = added([&] { group.fused_all_reduce(in_arena, ignore); });
    EXPECT_EQ(terms[Op::all_reduce].calls, sum[Op::all_reduce].calls);
    EXPECT_EQ(terms[Op::all_reduce].bytes, sum[Op::all_reduce].bytes);
    EXPECT_EQ(terms.total(), terms[Op::all_reduce]);
    EXPECT_EQ(terms.total().copied_bytes, 0);
    sum = added([&] { group.reduce_scatter(foreign, split); });
    terms = added([&] { group.fused_reduce_scatter(in_arena, split, ignore); });
    EXPECT_EQ(terms[Op::reduce_scatter].calls, sum[Op::reduce_scatter].calls);
    EXPECT_EQ(terms[Op::reduce_scatter].bytes, sum[Op::reduce_scatter].bytes);
    EXPECT_EQ(terms.total(), terms[Op::reduce_scatter]);
    EXPECT_EQ(terms.total().copied_bytes, 0);
    const int64_t staged = t > 1;
    terms = added([&] { group.fused_all_reduce(foreign, ignore); });
    EXPECT_EQ(terms.total().copied_bytes, staged * rows * kColumns * item);
    terms = added([&] { group.fused_all_reduce(few, ignore); });
    EXPECT_EQ(terms.total().copied_bytes, staged * 3 * item);
  });
}

// Nothing closes: each rank drops its term at once and overwrites whatever it allocates next.
TEST_P(TermsOf, AreNotReusedWhileAPeerReadsThem) {
  on_ranks(GetParam(), [&](Group group) {
    std::mt19937 own(unsigned(group.rank())), plan(7);
    for (int step = 0; step < 300; ++step) {
      const int64_t numel = 1 + plan() % 3000;
      if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 200));
      bool is_whole = true;
      {
        const at::Tensor x = group.empty({numel}, at::kFloat).fill_(float(step + 1000 * group.rank()));
        group.fused_all_reduce(x, [&](PeerBuffers terms) {
          if (own() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 200));
          for (size_t rank = 0; rank < terms.size(); ++rank) {
            const float* term = static_cast<const float*>(terms[rank]);
            for (int64_t i = 0; i < numel; ++i) is_whole &= term[i] == float(step + 1000 * int(rank));
          }
        });
      }
      ASSERT_TRUE(is_whole) << step;
      group.empty({numel}, at::kFloat).fill_(-1);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TermsOf, ::testing::Values(1, 2, 3, 4));

TEST(Terms, NeedSharedMemoryAndRowsThatFit) {
  on_ranks(2, [](Group group) {
    const at::Tensor x = at::full({4, 3}, 1.f);
    EXPECT_THROW(group.without_symmetric_heap().fused_all_reduce(x, [](PeerBuffers) {}), c10::ValueError);
    EXPECT_THROW(group.fused_reduce_scatter(x, Split::even("rows", 5, 2), [](PeerBuffers) {}), c10::ValueError);
    group.barrier();  // and the group still works
  });
}

// An error of the reader is its own; the group goes on.
TEST(Terms, MayFindAReaderThatFails) {
  on_ranks(2, [](Group group) {
    const at::Tensor x = group.empty({5000}, at::kFloat).fill_(1);
    EXPECT_THROW(group.fused_all_reduce(x, [](PeerBuffers) { throw std::runtime_error("mine"); }),
                 std::runtime_error);
    EXPECT_TRUE(equals(group.all_reduce(x), at::full({5000}, 2.f)));
  });
}

}  // namespace
}  // namespace shardwise::comm::terms_test
