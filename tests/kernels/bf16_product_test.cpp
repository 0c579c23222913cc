// In a suite of its own, which ctest lists as not run on a processor without these instructions.
#include "shardwise/kernels/bf16_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include <cmath>

#include "tests/kernels/support.h"

namespace shardwise::kernels::bf16_product_test {
namespace {

struct Shape {
  int64_t n, o, i;
};

// Around the ends of its blocks: 1024 terms, 128 rows, panels of 64 columns, pairs of terms.
TEST(Bf16Product, IsAccumulatedInFp32) {
  if (!has_bf16_products()) GTEST_SKIP() << "the processor lacks AVX512-BF16";
  for (const auto& [n, o, i] : {Shape{1, 1, 1},
                                {2, 3, 63},
                                {7, 127, 64},
                                {1023, 128, 65},
                                {1024, 129, 1},
                                {1025, 2, 128},
                                {2049, 257, 130},
                                {0, 3, 4},
                                {4, 0, 3}}) {
    const at::Tensor dy = random_tensor({n, o}, 1, at::kBFloat16),
                     x = random_tensor({n, i}, 2, at::kBFloat16);
    const at::Tensor start = random_tensor({o, i}, 3, at::kFloat);
    at::Tensor grad = start.clone();
    add_bf16_product_(grad, dy, x);
    const at::Tensor expected = wide(start) + at::matmul(wide(dy).t(), wide(x));
    EXPECT_LE(relative_error(grad, expected), bound(at::kFloat, 4 + 2 * std::sqrt(static_cast<double>(n))))
        << n << " " << o << " " << i;
  }
}

}  // namespace
}  // namespace shardwise::kernels::bf16_product_test
