// Products of bf16 by fp32 multiply-adds, on every instruction set: against fp64, and bit by bit against the
// product of one row and one panel of columns.
#include "shardwise/kernels/widened_product_isa.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "shardwise/kernels/tensors.h"
#include "tests/support/instruction_set.h"
#include "tests/support/tensors.h"

namespace shardwise::kernels::widened_product_test {
namespace {

using at::Tensor;

class WidenedProductLoops : public testing::EveryIsa {};
SHARDWISE_EVERY_ISA(WidenedProductLoops);

WidenedProduct<Bf16> product_of(const Tensor& y, const Tensor& a, const Tensor& b) {
  const bool is_transposed = b.stride(1) != 1;
  return {elements_<Bf16>(y), y.stride(0), elements<Bf16>(a),
          elements<Bf16>(b),  a.stride(0), b.stride(is_transposed ? 1 : 0),
          is_transposed,      a.size(0),   a.size(1),
          b.size(1)};
}

Tensor multiplied(const Tensor& a, const Tensor& b, Isa isa) {
  const Tensor y = at::full({a.size(0), b.size(1)}, NAN, a.options());
  widened_product_loops<Bf16>(isa).multiply(product_of(y, a, b), 0, b.size(1));
  return y;
}

Tensor factor(int64_t rows, int64_t columns, bool is_transposed, uint64_t seed) {
  return is_transposed ? testing::random_tensor({columns, rows}, seed, at::kBFloat16).t()
                       : testing::random_tensor({rows, columns}, seed, at::kBFloat16);
}

// Around the sizes of tiles, panels and blocks: 4, 12, 32, 120, 128 and 256.
constexpr int64_t kRows[] = {1, 2, 3, 4, 5, 11, 12, 13, 120, 121, 251},
                  kColumns[] = {1, 7, 31, 32, 33, 64, 127, 128, 130},
                  kDepths[] = {1, 2, 31, 33, 256, 257, 600};

TEST_P(WidenedProductLoops, MatchTheFp64Product) {
  int compared = 0;
  for (const int64_t m : kRows) {
    for (const int64_t n : kColumns) {
      for (const int64_t k : kDepths) {
        for (const bool is_transposed : {false, true}) {
          if (m > 13 && n > 33 && k > 33 && (m + n + k) % 3 != 0) continue;  // a third of the large ones
          const Tensor a = factor(m, k, false, 1), b = factor(k, n, is_transposed, 2);
          const Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
          const Tensor expected = wide_a.matmul(wide_b);
          // Rounding to bf16, and k additions in fp32 (Higham 2002, eq. 3.13).
          const Tensor bound = 0x1p-8 * expected.abs() +
                               0x1p-23 * static_cast<double>(k + 2) * wide_a.abs().matmul(wide_b.abs());
          const Tensor error = (multiplied(a, b, GetParam()).to(at::kDouble) - expected).abs();
          ASSERT_LE((error / bound).max().item<double>(), 1)
              << m << " " << k << " " << n << " " << is_transposed;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 1000);
}

TEST_P(WidenedProductLoops, AddTheFp64WeightGradient) {
  for (const int64_t outputs : {1, 5, 120, 123, 250}) {
    for (const int64_t inputs : {1, 31, 32, 130, 300}) {
      for (const int64_t n : {1, 3, 255, 256, 600}) {
        const Tensor dy = factor(n, outputs, false, 1), x = factor(n, inputs, false, 2);
        const Tensor before = testing::random_tensor({outputs, inputs}, 3, at::kFloat);
        Tensor after = before.clone();
        const WidenedGradient<Bf16> gradient{elements_<float>(after),
                                             inputs,
                                             elements<Bf16>(dy),
                                             elements<Bf16>(x),
                                             outputs,
                                             inputs,
                                             outputs,
                                             n,
                                             inputs};
        // In two parts, as threads do.
        const int64_t middle = inputs / 2 / kWidenedColumns * kWidenedColumns;
        widened_product_loops<Bf16>(GetParam()).add(gradient, 0, middle);
        widened_product_loops<Bf16>(GetParam()).add(gradient, middle, inputs);
        const Tensor wide_dy = dy.to(at::kDouble).t(), wide_x = x.to(at::kDouble);
        const Tensor expected = before.to(at::kDouble) + wide_dy.matmul(wide_x);
        const Tensor bound = 0x1p-23 * static_cast<double>(n + 3) *
                             (before.to(at::kDouble).abs() + wide_dy.abs().matmul(wide_x.abs()));
        const Tensor error = (after.to(at::kDouble) - expected).abs();
        ASSERT_LE((error / bound).max().item<double>(), 1) << outputs << " " << inputs << " " << n;
      }
    }
  }
}

// So that a row's bits depend neither on other rows, nor on the threads that share the columns.
TEST_P(WidenedProductLoops, GiveAnElementTheSameBitsInAnyProduct) {
  const int64_t m = 133, k = 300, n = 200;
  for (const bool is_transposed : {false, true}) {
    const Tensor a = factor(m, k, false, 1), b = factor(k, n, is_transposed, 2),
                 all = multiplied(a, b, GetParam());
    Tensor rows = at::empty({m, n}, a.options());
    for (int64_t i = 0; i < m; ++i) rows.select(0, i).copy_(multiplied(a.narrow(0, i, 1), b, GetParam())[0]);
    EXPECT_TRUE(rows.equal(all));
    Tensor panels = at::empty({m, n}, a.options());
    for (int64_t j = 0; j < n; j += kWidenedColumns)
      widened_product_loops<Bf16>(GetParam())
          .multiply(product_of(panels, a, b), j, std::min(j + kWidenedColumns, n));
    EXPECT_TRUE(panels.equal(all));
  }
}

TEST_P(WidenedProductLoops, WriteNothingBesideTheirColumns) {
  const Tensor a = factor(130, 40, false, 1), b = factor(40, 100, true, 2);
  const Tensor y = at::full({130, 110}, 1e30, a.options());
  widened_product_loops<Bf16>(GetParam()).multiply(product_of(y.narrow(1, 0, 100), a, b), 32, 64);
  EXPECT_TRUE((y.narrow(1, 0, 32) > 1e29).all().item<bool>());
  EXPECT_TRUE((y.narrow(1, 64, 46) > 1e29).all().item<bool>());
  EXPECT_FALSE((y.narrow(1, 32, 32) > 1e29).any().item<bool>());
}

TEST_P(WidenedProductLoops, PropagateNanAndInfinityInTheirRowsAlone) {
  Tensor a = factor(20, 50, false, 1);
  const Tensor b = at::full({70, 50}, 0.5, a.options()).t();
  a.select(0, 3).select(0, 49).fill_(NAN);
  a.select(0, 19).select(0, 0).fill_(INFINITY);
  const Tensor y = multiplied(a, b, GetParam());
  EXPECT_TRUE(y.select(0, 3).isnan().all().item<bool>());
  EXPECT_TRUE(y.select(0, 19).isinf().all().item<bool>());
  EXPECT_TRUE(y.slice(0, 4, 19).isfinite().all().item<bool>());
}

}  // namespace
}  // namespace shardwise::kernels::widened_product_test
