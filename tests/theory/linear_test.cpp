// A product whose weight is sharded by columns or by rows: forward and every gradient.
//
// The gradients are compared with difference quotients of L = Σᵢₖ Gᵢₖ Yᵢₖ, which are exact here. So G is the
// output gradient ∂L/∂Y.
#include <gtest/gtest.h>

#include "tests/theory/matrix.h"

namespace shardwise::testing::theory::linear_test {
namespace {

constexpr int64_t kN = 3, kM = 5, kK = 7;
const Matrix kX = sample(kN, kM, 1), kA = sample(kM, kK, 2), kBias = sample(1, kK, 3), kG = sample(kN, kK, 4);
const int kRanks[] = {1, 2, 3, 4, 9};  // 9 ranks: empty shards for both shardings

// Y = XA + b
double loss(const Matrix& x, const Matrix& a, const Matrix& bias) {
  return dot(kG, plus_row(x * a, bias));
}
const Matrix kDx = difference_quotient([](const Matrix& x) { return loss(x, kA, kBias); }, kX);
const Matrix kDa = difference_quotient([](const Matrix& a) { return loss(kX, a, kBias); }, kA);
const Matrix kDbias = difference_quotient([](const Matrix& bias) { return loss(kX, kA, bias); }, kBias);

std::vector<Matrix> on_each_rank(int ranks, int64_t size, const std::function<Matrix(base::Range)>& of) {
  const auto split = base::Split::even("shards", size, ranks);
  std::vector<Matrix> held;
  for (int rank = 0; rank < ranks; ++rank) held.push_back(of(split.range(rank)));
  return held;
}

// Rank r holds the columns A_r and b_r: Y_r = X A_r + b_r are columns of Y, without communication.
TEST(ColumnParallel, EachRankComputesItsColumns) {
  for (const int ranks : kRanks) {
    const auto y = on_each_rank(
        ranks, kK, [](auto local) { return plus_row(kX * columns_of(kA, local), columns_of(kBias, local)); });
    EXPECT_EQ(concatenated(y), plus_row(kX * kA, kBias)) << ranks;
  }
}

// ∂L/∂X = Σ_r G_r A_rᵀ: every rank reads X, so the chain rule has one term per rank, which f's all_reduce
// sums.
TEST(ColumnParallel, InputGradientIsASumOverRanks) {
  for (const int ranks : kRanks) {
    const auto terms = on_each_rank(
        ranks, kK, [](auto local) { return columns_of(kG, local) * transposed(columns_of(kA, local)); });
    EXPECT_EQ(summed(terms), kDx) << ranks;
    EXPECT_EQ(terms[0] == kDx, ranks == 1) << "a partial sum equals the full gradient";
  }
}

// ∂L/∂A_r = Xᵀ G_r and ∂L/∂b_r = Σᵢ (G_r)ᵢ need only the local columns, without communication.
TEST(ColumnParallel, WeightAndBiasGradientsAreLocal) {
  for (const int ranks : kRanks) {
    const auto of_a =
        on_each_rank(ranks, kK, [](auto local) { return transposed(kX) * columns_of(kG, local); });
    EXPECT_EQ(concatenated(of_a), kDa) << ranks;
    const auto of_bias =
        on_each_rank(ranks, kK, [](auto local) { return column_sums(columns_of(kG, local)); });
    EXPECT_EQ(concatenated(of_bias), kDbias) << ranks;
  }
}

// Rank r holds the rows A_r and the columns X_r: Y = Σ_r X_r A_r + b needs f*'s all_reduce.
TEST(RowParallel, OutputIsASumOverRanks) {
  for (const int ranks : kRanks) {
    const auto terms =
        on_each_rank(ranks, kM, [](auto local) { return columns_of(kX, local) * rows_of(kA, local); });
    EXPECT_EQ(plus_row(summed(terms), kBias), plus_row(kX * kA, kBias)) << ranks;
  }
}

// If it were added to every partial sum, the bias would count once per rank.
TEST(RowParallel, BiasIsAddedOnceAfterTheReduction) {
  for (const int ranks : kRanks) {
    const auto terms = on_each_rank(
        ranks, kM, [](auto local) { return plus_row(columns_of(kX, local) * rows_of(kA, local), kBias); });
    const Matrix often = apply([ranks](double b) { return ranks * b; }, kBias);
    EXPECT_EQ(summed(terms), plus_row(kX * kA, often)) << ranks;
  }
}

// ∂L/∂X_r = G A_rᵀ are columns of ∂L/∂X, because no two ranks read the same part of X. This needs no
// communication: the derivative of a sum with respect to each term is one.
TEST(RowParallel, InputGradientIsLocal) {
  for (const int ranks : kRanks) {
    const auto dx = on_each_rank(ranks, kM, [](auto local) { return kG * transposed(rows_of(kA, local)); });
    EXPECT_EQ(concatenated(dx), kDx) << ranks;
  }
}

// ∂L/∂A_r = X_rᵀ G are the local rows. ∂L/∂b = Σᵢ Gᵢ is the same on every rank.
TEST(RowParallel, WeightGradientIsLocalAndBiasGradientIsReplicated) {
  for (const int ranks : kRanks) {
    const auto da = on_each_rank(ranks, kM, [](auto local) {
      return transposed(transposed(columns_of(kX, local)) * kG);  // columns, to be concatenated
    });
    EXPECT_EQ(transposed(concatenated(da)), kDa) << ranks;
  }
  EXPECT_EQ(column_sums(kG), kDbias);
}

// If the rows of the residual stream are sharded too, a rank has only its rows of G: its bias gradient is a
// partial sum.
TEST(RowParallel, BiasGradientIsASumUnderSequenceParallelism) {
  for (const int ranks : kRanks) {
    const auto terms = on_each_rank(ranks, kN, [](auto local) { return column_sums(rows_of(kG, local)); });
    EXPECT_EQ(summed(terms), kDbias) << ranks;
  }
}

}  // namespace
}  // namespace shardwise::testing::theory::linear_test
