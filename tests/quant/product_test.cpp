// Compares products with quantized weights with products with the dequantized weights.
#include "shardwise/quant/product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "shardwise/kernels/product.h"
#include "shardwise/quant/quantize.h"
#include "tests/support/error_text.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing::product_test {
namespace {

using base::Range;
using quant::Matrix;

Matrix random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  const at::Tensor w = random_tensor({rows, columns}, seed, at::kFloat);
  Matrix m = Matrix::empty({4, 32}, rows, columns, {0, columns});
  quant::quantize_rows_(m, 0, w, quant::group_maxima(w, m.format, columns, m.columns));
  return m;
}

at::Tensor dequantized(const Matrix& m, at::ScalarType dtype) {
  at::Tensor w = at::empty({m.rows(), m.width()}, dtype);
  dequantize_out(w, m, {0, m.rows()});
  return w;
}

at::Tensor product(const at::Tensor& x, const Matrix& m) {
  at::Tensor y = at::full({x.size(0), m.rows()}, 7, x.options());
  quant::product_out(y, x, m);
  return y;
}

TEST(QuantizedProduct, OneBlockEqualsTheDequantizedProductBitwise) {
  const Matrix m = random_matrix(37, 75, /*seed=*/1);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {0, 1, 3, 19}) {
      const at::Tensor x = random_tensor({rows, 75}, /*seed=*/2, dtype);
      at::Tensor expected = at::empty({rows, 37}, dtype);
      kernels::product_out(expected, x, dequantized(m, dtype).t());
      EXPECT_TRUE(same_bits(product(x, m), expected)) << dtype << " " << rows;
    }
  }
}

TEST(QuantizedProduct, SeveralBlocksEqualTheDequantizedProduct) {
  const Matrix m = random_matrix(300, 9000, /*seed=*/3);  // 4 MB of fp32 are 116 rows
  for (const int64_t rows : {1, 9}) {
    const at::Tensor x = random_tensor({rows, 9000}, /*seed=*/4, at::kFloat);
    const at::Tensor expected = x.to(at::kDouble).mm(dequantized(m, at::kDouble).t());
    EXPECT_LT(relative_error(product(x, m), expected), 1e-6) << rows;
  }
}

/// 231 groups over two ranks (116 and 115), and a boundary within a group. Each rank's product equals the
/// dequantized product bitwise, and the sum is the unsharded product.
TEST(QuantizedProduct, ShardsEqualTheDequantizedProductBitwise) {
  constexpr int64_t rows = 6, columns = 29568, group = 128;
  const at::Tensor w = random_tensor({rows, columns}, /*seed=*/7, at::kFloat);
  const at::Tensor x = random_tensor({3, columns}, /*seed=*/8, at::kFloat);
  const quant::Format format{4, group};
  const at::Tensor maxima = quant::group_maxima(w, format, columns, {0, columns});
  const auto shard_of = [&](const Range& range) {
    Matrix m = Matrix::empty(format, rows, columns, range);
    const Range groups = m.groups();
    quant::quantize_rows_(m, 0, w.narrow(1, range.begin, range.size()).contiguous(),
                          maxima.narrow(1, groups.begin, groups.size()).contiguous());
    return m;
  };
  const at::Tensor full = dequantized(shard_of({0, columns}), at::kDouble);
  for (const int64_t boundary : {116 * group, 14784L + 1}) {
    at::Tensor sum = at::zeros({3, rows}, at::kFloat);
    for (const Range& range : {Range{0, boundary}, Range{boundary, columns}}) {
      const Matrix m = shard_of(range);
      const at::Tensor local = x.narrow(1, range.begin, range.size()).contiguous();
      at::Tensor expected = at::empty({3, rows}, at::kFloat);
      kernels::product_out(expected, local, dequantized(m, at::kFloat).t());
      const at::Tensor y = product(local, m);
      EXPECT_TRUE(same_bits(y, expected)) << range.begin;
      sum = sum + y;
    }
    EXPECT_LT(relative_error(sum, x.to(at::kDouble).mm(full.t())), 1e-6) << boundary;
  }
}

TEST(QuantizedProduct, ChecksShapes) {
  const Matrix m = random_matrix(4, 8, /*seed=*/5);
  EXPECT_PRED2(test::contains, test::error_text([&] {
                 product(at::zeros({2, 9}, at::kFloat), m);
               }),
               "quantized product: needs [m, 8] to [m, 4] of one dtype; got [2, 9]");
}

TEST(QuantizedEmbedding, LooksUpLocalIdsAndZeroesOthers) {
  const Matrix m = random_matrix(6, 40, /*seed=*/6);  // ids 10 to 15
  at::Tensor ids = at::empty({2, 2}, at::kLong);
  const int64_t list[] = {9, 10, 15, 16};
  std::copy(std::begin(list), std::end(list), ids.mutable_data_ptr<int64_t>());
  at::Tensor y = at::full({2, 2, 40}, 7, at::kBFloat16);
  quant::embedding_out(y, ids, m, /*begin=*/10);
  const at::Tensor w = dequantized(m, at::kBFloat16), zero = at::zeros({40}, at::kBFloat16);
  EXPECT_TRUE(same_bits(y[0][0], zero) && same_bits(y[1][1], zero));
  EXPECT_TRUE(same_bits(y[0][1], w[0]) && same_bits(y[1][0], w[5]));
}

}  // namespace
}  // namespace shardwise::testing::product_test
