// Sums can be computed in any order: a dot product split into parts, on one rank and on several.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/theory/matrix.h"

namespace shardwise::testing::theory::dot_product_test {
namespace {

constexpr int64_t kLength = 16;

// Σᵢ xᵢ yᵢ over a range of i.
double dot_over(base::Range range) {
  const Matrix x = sample(1, kLength, 1), y = sample(1, kLength, 2);
  return dot(columns_of(x, range), columns_of(y, range));
}

// Σᵢ xᵢ yᵢ = Σᵣ Σ_f x_(r,f) y_(r,f): the index i reshaped into r and f.
TEST(SplitDotProduct, EqualsTheReshapedDotProduct) {
  const double full = dot_over({0, kLength});
  EXPECT_NE(full, 0);
  for (const int64_t rows : {1, 2, 4, 8, 16}) {
    const auto reshape = [&](const Matrix& x) {
      return matrix(rows, kLength / rows,
                    [&](int64_t r, int64_t f) { return x(0, r * (kLength / rows) + f); });
    };
    EXPECT_EQ(dot(reshape(sample(1, kLength, 1)), reshape(sample(1, kLength, 2))), full);
  }
}

TEST(SplitDotProduct, EqualsTheSumOverRanksForAnyPartition) {
  for (const int ranks : {1, 2, 3, 4, 16, 20}) {
    const auto split = base::Split::even("i", kLength, ranks);
    double sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += dot_over(split.range(rank));
    EXPECT_EQ(sum, dot_over({0, kLength})) << ranks;
  }
}

TEST(SplitDotProduct, NeedsOneAllReduce) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      const auto split = base::Split::even("i", kLength, group.size());
      const double local = dot_over(split.range(group.rank()));
      const double sum = group.all_reduce(at::full({1}, local, at::kDouble)).item<double>();
      EXPECT_EQ(sum, dot_over({0, kLength})) << "rank " << group.rank() << " of " << ranks;
    });
  }
}

}  // namespace
}  // namespace shardwise::testing::theory::dot_product_test
