// A product whose weight is cut by columns, or by rows: forward, and every gradient.
//
// The gradients are held against difference quotients of L = Σᵢₖ Gᵢₖ Yᵢₖ, which are exact here; G is then the
// gradient that arrives, ∂L/∂Y.
#include <gtest/gtest.h>

#include "tests/theory/matrix.h"

namespace shardwise::testing::theory::linear_test {
namespace {

constexpr int64_t kN = 3, kM = 5, kK = 7;
const Matrix kX = sample(kN, kM, 1), kA = sample(kM, kK, 2), kBias = sample(1, kK, 3), kG = sample(kN, kK, 4);
const int kRanks[] = {1, 2, 3, 4, 9};  // 9 ranks: empty shards of either cut

// Y = XA + b
double loss(const Matrix& x, const Matrix& a, const Matrix& bias) {
  return dot(kG, plus_row(x * a, bias));
}
const Matrix kDx = difference_quotient([](const Matrix& x) { return loss(x, kA, kBias); }, kX);
const Matrix kDa = difference_quotient([](const Matrix& a) { return loss(kX, a, kBias); }, kA);
const Matrix kDbias = difference_quotient([](const Matrix& bias) { return loss(kX, kA, bias); }, kBias);

std::vector<Matrix> on_each_rank(int ranks, int64_t size, const std::function<Matrix(base::Range)>& of) {
  const auto split = base::Split::even("cut", size, ranks);
  std::vector<Matrix> held;
  for (int rank = 0; rank < ranks; ++rank) held.push_back(of(split.range(rank)));
  return held;
}

// Rank r holds columns A_r and b_r: Y_r = X A_r + b_r are columns of Y, and nothing is communicated.
TEST(ColumnParallel, EachRankComputesItsColumns) {
  for (const int ranks : kRanks) {
    const auto y = on_each_rank(
        ranks, kK, [](auto own) { return plus_row(kX * columns_of(kA, own), columns_of(kBias, own)); });
    EXPECT_EQ(concatenated(y), plus_row(kX * kA, kBias)) << ranks;
  }
}

// ∂L/∂X = Σ_r G_r A_rᵀ: X is read by every rank, so the chain rule has a term for each: f's all_reduce.
TEST(ColumnParallel, TheInputsGradientIsASumOverTheRanks) {
  for (const int ranks : kRanks) {
    const auto terms = on_each_rank(
        ranks, kK, [](auto own) { return columns_of(kG, own) * transposed(columns_of(kA, own)); });
    EXPECT_EQ(summed(terms), kDx) << ranks;
    EXPECT_EQ(terms[0] == kDx, ranks == 1) << "one term is not the whole";
  }
}

// ∂L/∂A_r = Xᵀ G_r and ∂L/∂b_r = Σᵢ (G_r)ᵢ: of the own columns, and nothing is communicated.
TEST(ColumnParallel, WeightAndBiasGradientsAreTheOwnColumns) {
  for (const int ranks : kRanks) {
    const auto of_a = on_each_rank(ranks, kK, [](auto own) { return transposed(kX) * columns_of(kG, own); });
    EXPECT_EQ(concatenated(of_a), kDa) << ranks;
    const auto of_bias = on_each_rank(ranks, kK, [](auto own) { return column_sums(columns_of(kG, own)); });
    EXPECT_EQ(concatenated(of_bias), kDbias) << ranks;
  }
}

// Rank r holds rows A_r and columns X_r: Y = Σ_r X_r A_r + b: f*'s all_reduce.
TEST(RowParallel, TheOutputIsASumOverTheRanks) {
  for (const int ranks : kRanks) {
    const auto terms =
        on_each_rank(ranks, kM, [](auto own) { return columns_of(kX, own) * rows_of(kA, own); });
    EXPECT_EQ(plus_row(summed(terms), kBias), plus_row(kX * kA, kBias)) << ranks;
  }
}

// Added to every term instead, the bias would count once for each rank.
TEST(RowParallel, TheBiasIsAddedOnceAfterTheSum) {
  for (const int ranks : kRanks) {
    const auto terms = on_each_rank(
        ranks, kM, [](auto own) { return plus_row(columns_of(kX, own) * rows_of(kA, own), kBias); });
    const Matrix often = apply([ranks](double b) { return ranks * b; }, kBias);
    EXPECT_EQ(summed(terms), plus_row(kX * kA, often)) << ranks;
  }
}

// ∂L/∂X_r = G A_rᵀ: the columns of ∂L/∂X, because no two ranks read the same part of X. Nothing is
// communicated: the derivative of a sum by each of its terms is one.
TEST(RowParallel, TheInputsGradientIsEachRanksColumns) {
  for (const int ranks : kRanks) {
    const auto dx = on_each_rank(ranks, kM, [](auto own) { return kG * transposed(rows_of(kA, own)); });
    EXPECT_EQ(concatenated(dx), kDx) << ranks;
  }
}

// ∂L/∂A_r = X_rᵀ G: the own rows. ∂L/∂b = Σᵢ Gᵢ, the same on every rank.
TEST(RowParallel, WeightGradientIsTheOwnRowsAndTheBiasGradientTheSameOnEach) {
  for (const int ranks : kRanks) {
    const auto da = on_each_rank(ranks, kM, [](auto own) {
      return transposed(transposed(columns_of(kX, own)) * kG);  // columns, to be put side by side
    });
    EXPECT_EQ(transposed(concatenated(da)), kDa) << ranks;
  }
  EXPECT_EQ(column_sums(kG), kDbias);
}

// With the rows of the stream cut as well, a rank sees its own rows of G: its bias gradient is a term.
TEST(RowParallel, UnderSequenceParallelTheBiasGradientIsASum) {
  for (const int ranks : kRanks) {
    const auto terms = on_each_rank(ranks, kN, [](auto own) { return column_sums(rows_of(kG, own)); });
    EXPECT_EQ(summed(terms), kDbias) << ranks;
  }
}

}  // namespace
}  // namespace shardwise::testing::theory::linear_test
