// The pair, column then row: z = φ(x W0 + b0) W1 + b1, with the intermediate index e reshaped into (r, f),
// rank and position in the rank's shard. Checks forward, every gradient, and the library's layers, entry by
// entry.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tests/support/layers.h"
#include "tests/support/ranks.h"
#include "tests/theory/matrix.h"

namespace shardwise::testing::theory::pair_test {
namespace {

constexpr int64_t kN = 5, kD = 4, kE = 7;

// φ(x) = x² + x: elementwise and nonlinear. The loss is quadratic in each entry of x, W0 and b0, so
// difference quotients are exact.
double phi(double x) {
  return x * x + x;
}
double phi_slope(double x) {
  return 2 * x + 1;
}

struct Mlp {
  Matrix x = sample(kN, kD, 1), w0 = sample(kD, kE, 2), b0 = sample(1, kE, 3), w1 = sample(kE, kD, 4),
         b1 = sample(1, kD, 5);

  Matrix operator()() const { return plus_row(apply(phi, plus_row(x * w0, b0)) * w1, b1); }
};
const Mlp kMlp;
const Matrix kG = sample(kN, kD, 6);  // ∂L/∂z, with L = Σ G ∘ z

/// Returns the gradient with respect to one of the five tensors.
Matrix gradient(Matrix Mlp::*of) {
  return difference_quotient(
      [of](const Matrix& changed) {
        Mlp mlp;
        mlp.*of = changed;
        return dot(kG, mlp());
      },
      kMlp.*of);
}

// Rank r's shard of the index e, and its local computations.
struct Rank {
  Matrix w0, b0, w1;  // columns, columns, rows: W0_(d,rf), b0_rf, W1_(rf,d)

  explicit Rank(base::Range local)
      : w0(columns_of(kMlp.w0, local)), b0(columns_of(kMlp.b0, local)), w1(rows_of(kMlp.w1, local)) {}

  Matrix inner() const { return plus_row(kMlp.x * w0, b0); }
  Matrix term() const { return apply(phi, inner()) * w1; }
  // φ' is evaluated at φ's input, not at the gradient.
  Matrix d_inner() const { return times_each(kG * transposed(w1), apply(phi_slope, inner())); }
};

std::vector<Matrix> on_each_rank(int ranks, const std::function<Matrix(const Rank&)>& of) {
  const auto split = base::Split::even("e", kE, ranks);
  std::vector<Matrix> held;
  for (int rank = 0; rank < ranks; ++rank) held.push_back(of(Rank(split.range(rank))));
  return held;
}

constexpr int kRanks[] = {1, 2, 3, 4, 9};

// z_d = Σ_r Σ_f W1_(rf,d) φ(Σ_d' x_d' W0_(d',rf) + b0_rf) + b1_d: one sum over the ranks, at the end.
TEST(Pair, ForwardNeedsOneAllReduce) {
  for (const int ranks : kRanks) {
    const auto terms = on_each_rank(ranks, [](const Rank& rank) { return rank.term(); });
    EXPECT_EQ(plus_row(summed(terms), kMlp.b1), kMlp()) << ranks;
  }
}

// ∂L/∂x = Σ_r ((G W1_rᵀ) ∘ φ'(x W0_r + b0_r)) W0_rᵀ: again one sum over the ranks, the pair in reverse.
TEST(Pair, BackwardNeedsOneAllReduce) {
  for (const int ranks : kRanks) {
    const auto terms =
        on_each_rank(ranks, [](const Rank& rank) { return rank.d_inner() * transposed(rank.w0); });
    EXPECT_EQ(summed(terms), gradient(&Mlp::x)) << ranks;
  }
}

TEST(Pair, WeightGradientsAreLocal) {
  for (const int ranks : kRanks) {
    const auto d_w0 =
        on_each_rank(ranks, [](const Rank& rank) { return transposed(kMlp.x) * rank.d_inner(); });
    EXPECT_EQ(concatenated(d_w0), gradient(&Mlp::w0)) << ranks;
    const auto d_b0 = on_each_rank(ranks, [](const Rank& rank) { return column_sums(rank.d_inner()); });
    EXPECT_EQ(concatenated(d_b0), gradient(&Mlp::b0)) << ranks;
    const auto d_w1 =
        on_each_rank(ranks, [](const Rank& rank) { return transposed(kG) * apply(phi, rank.inner()); });
    EXPECT_EQ(transposed(concatenated(d_w1)), gradient(&Mlp::w1)) << ranks;
  }
  EXPECT_EQ(column_sums(kG), gradient(&Mlp::b1));
}

// If the first weight were sharded by rows, φ would need the reduced sum: φ(Σ) is not Σ φ.
TEST(Pair, RowThenColumnNeedsAnAllReduceBeforeTheNonlinearity) {
  const auto split = base::Split::even("d", kD, 2);
  std::vector<Matrix> terms;
  for (const int rank : {0, 1}) {
    const base::Range local = split.range(rank);
    terms.push_back(apply(phi, columns_of(kMlp.x, local) * rows_of(kMlp.w0, local)));
  }
  EXPECT_NE(summed(terms), apply(phi, kMlp.x * kMlp.w0));
}

// The library's two layers on the same integers. Their weights are [out, in], those of docs/theory.md [in,
// out].
at::Tensor tensor_of(const Matrix& m) {
  at::Tensor tensor = at::empty({m.rows, 1, m.columns}, at::kDouble);
  std::copy(m.entries.begin(), m.entries.end(), tensor.mutable_data_ptr<double>());
  return tensor;
}

Matrix matrix_of(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.detach().contiguous();
  Matrix m(rows.numel() / std::max<int64_t>(rows.size(-1), 1), rows.size(-1));
  std::copy_n(rows.const_data_ptr<double>(), rows.numel(), m.entries.begin());
  return m;
}

void fill_(const nn::ParameterPtr& parameter, const Matrix& slice) {
  const at::NoGradGuard no_grad;
  parameter->value.copy_(tensor_of(slice).view(parameter->value.sizes()));
  parallel::zero_grad_(*parameter);
}

struct Layers {
  nn::ColumnParallelLinear column;
  nn::RowParallelLinear row;

  explicit Layers(const comm::Group& group)
      : column("column", with_bias(kD, kE), base::ShardRule::sharded(0, split(group)), group, at::kDouble),
        row("row", with_bias(kE, kD), base::ShardRule::sharded(1, split(group)), group, at::kDouble) {
    const Rank local(split(group).range(group.rank()));
    fill_(column.weight(), transposed(local.w0));
    fill_(column.bias(), local.b0);
    fill_(row.weight(), transposed(local.w1));
    fill_(row.bias(), kMlp.b1);
  }
  static base::Split split(const comm::Group& group) { return base::Split::even("e", kE, group.size()); }

  template <nn::ResidualStream Stream>
  nn::Placed<Stream> operator()(const nn::Placed<Stream>& x, const nn::Step& step) const {
    const at::Tensor inner = column(x, step).local();
    return row.to<Stream>(nn::Placed<nn::Sharded<nn::kFeature>>(inner * inner + inner), step);
  }
};

template <nn::ResidualStream Stream>
void compare_with_the_library(const comm::Group& group) {
  const nn::Step step(group, kN);
  const Layers layers(group);
  const base::Range rows =
      std::is_same_v<Stream, nn::Invariant> ? base::Range{0, kN} : step.sequence.range(group.rank());
  const at::Tensor x = tensor_of(rows_of(kMlp.x, rows)).requires_grad_();
  const at::Tensor z = layers(nn::Placed<Stream>(x), step).local();
  EXPECT_EQ(matrix_of(z), rows_of(kMlp(), rows));

  z.backward(tensor_of(rows_of(kG, rows)));
  const base::Range local = Layers::split(group).range(group.rank());
  EXPECT_EQ(matrix_of(x.grad()), rows_of(gradient(&Mlp::x), rows));
  EXPECT_EQ(matrix_of(layers.column.weight()->main_grad), transposed(columns_of(gradient(&Mlp::w0), local)));
  EXPECT_EQ(matrix_of(layers.column.bias()->main_grad), columns_of(gradient(&Mlp::b0), local));
  EXPECT_EQ(matrix_of(layers.row.weight()->main_grad), transposed(rows_of(gradient(&Mlp::w1), local)));
  EXPECT_EQ(matrix_of(layers.row.bias()->main_grad), column_sums(rows_of(kG, rows)));
}

TEST(Pair, LayersGiveTheSameNumbers) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      SCOPED_TRACE("rank " + std::to_string(group.rank()) + " of " + std::to_string(ranks));
      compare_with_the_library<nn::Invariant>(group);
      compare_with_the_library<nn::Sharded<nn::kSequence>>(group);
    });
  }
}

}  // namespace
}  // namespace shardwise::testing::theory::pair_test
