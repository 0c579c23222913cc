// Matrix products of the linear layers. Uses whichever of torch's two libraries is faster for the shape, or
// our own loops for a few rows times a weight.
//
// torch's default for fp32, MKL, runs AVX2 code on AMD processors with AVX-512. oneDNN, which torch also
// contains, runs AVX-512 code at 2.2 times the speed (docs/adr/0007). The choice depends only on processor,
// dtype and shape, so it is the same on every rank and in every run.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

namespace shardwise::kernels {

/// Computes y = a·b. Shapes: `a` [m, k], `b` [k, n], either may be transposed; `y` [m, n] contiguous; one
/// dtype. Errors: c10::ValueError if shapes or dtypes do not match.
void product_out(at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

/// Returns what product_out uses for these operands, for output: "own loops, avx512", "oneDNN" or "torch.mm".
std::string product_name(const at::Tensor& a, const at::Tensor& b);

/// Returns up to how many rows of `a` times a contiguous weight, viewed as its transpose, have the bits that
/// each row has alone.
int64_t rows_with_equal_bits(at::ScalarType dtype);

/// Computes y += a·b, with the shapes and errors of product_out.
void add_product_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

}  // namespace shardwise::kernels
