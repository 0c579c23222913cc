// Compares products with fp64 products, for shapes that use each library, transposed and not.
#include "shardwise/kernels/product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/support/tensors.h"

namespace shardwise::kernels::product_test {
namespace {

using at::Tensor;

struct Shape {
  int64_t m, k, n;
};

const std::vector<Shape> kShapes = {{1, 1, 1},      {33, 24, 101},   {0, 5, 7},   {5, 0, 7}, {5, 7, 0},
                                    {128, 96, 128}, {257, 129, 131}, {3, 70, 37}, {4, 33, 2}};

/// Many rows, at and just beyond sizes that libraries compute in blocks: 32, 128, 256, 768 and 1024.
const std::vector<Shape> kLargeShapes = {{256, 1, 1},       {256, 32, 33},   {271, 31, 65},
                                         {272, 768, 64},    {289, 769, 97},  {384, 1600, 31},
                                         {1057, 1537, 130}, {300, 770, 1500}};

double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kDouble ? 0x1p-53 : dtype == at::kFloat ? 0x1p-24 : 0x1p-8;
}

/// Returns the largest error of an element as a share of its bound: rounding `rounded`, and summing k
/// products in fp32 or fp64 in any order, k·u·|a|·|b| (Higham 2002, eq. 3.13), twice, as the fp64 product
/// errs too.
double share_of_bound(const Tensor& error, const Tensor& rounded, const Tensor& a, const Tensor& b) {
  if (error.numel() == 0) return 0;
  const at::ScalarType dtype = a.scalar_type();
  const double sum_unit = unit_roundoff(dtype == at::kDouble ? dtype : at::kFloat);
  const Tensor terms = a.to(at::kDouble).abs().matmul(b.to(at::kDouble).abs());
  const Tensor bound =
      unit_roundoff(dtype) * rounded.abs() + 2 * sum_unit * static_cast<double>(a.size(1) + 2) * terms;
  return (error.abs() / bound.clamp_min(1e-300)).max().item<double>();
}

Tensor operand(int64_t rows, int64_t columns, bool is_transposed, uint64_t seed, at::ScalarType dtype) {
  return is_transposed ? testing::random_tensor({columns, rows}, seed, dtype).t()
                       : testing::random_tensor({rows, columns}, seed, dtype);
}

struct Multiply {
  std::string name;
  std::function<void(Tensor&, const Tensor&, const Tensor&)> out, add;
};

/// Returns the choice by shape and, for fp32, each library by name. oneDNN writes no product of width 0
/// (docs/adr/0007), which the choice never gives it.
std::vector<Multiply> ways_to_multiply(const Shape& shape, at::ScalarType dtype) {
  std::vector<Multiply> ways{{"chosen",
                              [](Tensor& y, const Tensor& a, const Tensor& b) { product_out(y, a, b); },
                              [](Tensor& y, const Tensor& a, const Tensor& b) { add_product_(y, a, b); }}};
  for (const ProductLibrary library : product_libraries()) {
    if (dtype != at::kFloat || shape.m * shape.k * shape.n == 0) continue;
    ways.push_back(
        {name(library),
         [library](Tensor& y, const Tensor& a, const Tensor& b) { product_out(y, a, b, library); },
         [library](Tensor& y, const Tensor& a, const Tensor& b) { add_product_(y, a, b, library); }});
  }
  return ways;
}

/// Compares y = a·b and y += a·b, where either operand may be transposed, with fp64.
void expect_fp64_products(const Shape& shape, at::ScalarType dtype) {
  const auto& [m, k, n] = shape;
  for (const int transposed : {0, 1, 2, 3}) {
    SCOPED_TRACE(::testing::Message() << m << "x" << k << "x" << n << " " << dtype << " " << transposed);
    const Tensor a = operand(m, k, transposed & 1, 1, dtype), b = operand(k, n, transposed & 2, 2, dtype);
    const Tensor expected = a.to(at::kDouble).matmul(b.to(at::kDouble));
    for (const Multiply& multiply : ways_to_multiply(shape, dtype)) {
      SCOPED_TRACE(multiply.name);
      Tensor y = at::empty({m, n}, at::TensorOptions(dtype)).fill_(NAN);
      multiply.out(y, a, b);
      EXPECT_LE(share_of_bound(y.to(at::kDouble) - expected, expected, a, b), 1);
      Tensor sum = testing::random_tensor({m, n}, 3, dtype);
      const Tensor expected_sum = sum.to(at::kDouble) + expected;
      const Tensor rounded = sum.abs().to(at::kDouble) + 2 * expected.abs();
      multiply.add(sum, a, b);
      EXPECT_LE(share_of_bound(sum.to(at::kDouble) - expected_sum, rounded, a, b), 1);
    }
  }
}

TEST(Product, MatchesTheFp64Product) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const Shape& shape : kShapes) expect_fp64_products(shape, dtype);
  }
  for (const Shape& shape : kLargeShapes) expect_fp64_products(shape, at::kBFloat16);
}

TEST(Product, PropagatesNanAndInfinity) {
  const Tensor w = testing::random_tensor({70, 40}, 2, at::kBFloat16);
  Tensor x = testing::random_tensor({260, 40}, 1, at::kBFloat16);
  x.select(0, 3).select(0, 39).fill_(NAN);
  x.select(0, 259).select(0, 39).fill_(INFINITY);
  Tensor y = at::empty({260, 70}, x.options());
  product_out(y, x, w.t());
  EXPECT_TRUE(y.select(0, 3).isnan().all().item<bool>());
  EXPECT_TRUE(y.select(0, 259).isinf().all().item<bool>());
  EXPECT_TRUE(y.slice(0, 4, 259).isfinite().all().item<bool>());
}

TEST(Product, RejectsMismatchedInputs) {
  Tensor y = at::empty({2, 3});
  EXPECT_THROW(product_out(y, at::randn({2, 4}), at::randn({5, 3})), c10::ValueError);
  EXPECT_THROW(product_out(y, at::randn({2, 4}), at::randn({4, 3}).to(at::kDouble)), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::kernels::product_test
