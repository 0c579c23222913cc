// An all_reduce is a reduce_scatter and an all_gather: equal results and equal bytes.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace shardwise::testing::theory::collectives_test {
namespace {

using at::Tensor;
using comm::Op;
using Numbers = std::vector<double>;

Numbers numbers_of(const Tensor& x) {
  const double* first = x.const_data_ptr<double>();
  return {first, first + x.numel()};
}

/// A rank's partial sum: consecutive integers from 1 on, continued from rank to rank.
Tensor term(int64_t size, int rank) {
  return at::arange(size * rank + 1, size * (rank + 1) + 1, at::kDouble);
}

/// Entry i of the sum: Σᵣ (size·r + i + 1).
Numbers sum_of_terms(int64_t size, int ranks) {
  Numbers sum(size);
  for (int64_t i = 0; i < size; ++i) {
    sum[i] = static_cast<double>(ranks * (i + 1) + size * ranks * (ranks - 1) / 2);
  }
  return sum;
}

void compare(const comm::Group& group, int64_t size) {
  const auto split = base::Split::even("numbers", size, group.size());
  const Tensor x = term(size, group.rank());
  const Numbers sum = sum_of_terms(size, group.size());
  const comm::Counters before = group.counters();

  EXPECT_EQ(numbers_of(group.all_reduce(x)), sum);

  const Tensor local = group.reduce_scatter(x, split);
  const base::Range range = split.range(group.rank());
  EXPECT_EQ(numbers_of(local), Numbers(sum.begin() + range.begin, sum.begin() + range.end));
  EXPECT_EQ(numbers_of(group.all_gather(local, split)), sum);

  const comm::Counters used = group.counters() - before;
  EXPECT_EQ(used[Op::all_reduce].bytes > 0, group.size() > 1 && size > 0);
  EXPECT_EQ(used[Op::all_reduce].bytes, used[Op::reduce_scatter].bytes + used[Op::all_gather].bytes);
}

// Checks 1 2 3 4 + 5 6 7 8 explicitly; then lengths that are not divisible, shorter than the number of ranks,
// empty, and longer than the payload that an all_reduce sends inline with its header.
TEST(Collectives, AllReduceIsReduceScatterThenAllGather) {
  EXPECT_EQ(sum_of_terms(4, 2), (Numbers{6, 8, 10, 12}));
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      for (const int64_t size : {4, 7, 2, 0, 1001}) {
        SCOPED_TRACE(std::to_string(size) + " numbers, rank " + std::to_string(group.rank()) + " of " +
                     std::to_string(ranks));
        compare(group, size);
      }
    });
  }
}

}  // namespace
}  // namespace shardwise::testing::theory::collectives_test
