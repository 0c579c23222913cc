// Matrix products of the linear layers: by the library that product_library.h names, or by our own loops for
// a few rows times a weight, and for bf16 on processors without bf16 instructions; on other devices by
// torch.mm, or by their kernel for a few rows times a weight. What computes a product
// depends only on the processor, dtype and shape, and on what was measured there, so it is the same on every
// rank of a node and in every run.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "shardwise/kernels/product_library.h"

namespace shardwise::kernels {

/// Computes y = a·b. Shapes: `a` [m, k], `b` [k, n], either may be transposed; `y` [m, n] contiguous; one
/// dtype. Errors: c10::ValueError if shapes or dtypes do not match.
void product_out(at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

/// As above, by one of product_libraries(); torch.mm for every dtype, oneDNN for fp32.
void product_out(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, ProductLibrary library);

/// Returns what product_out uses for these operands, for output: "own loops, avx512", "oneDNN" or "torch.mm".
std::string product_name(const at::Tensor& a, const at::Tensor& b);

/// Returns up to how many rows of `a` times a contiguous weight, viewed as its transpose, have the bits that
/// each row has alone.
int64_t rows_with_equal_bits(at::ScalarType dtype);

/// Computes y += a·b, with the shapes and errors of product_out.
void add_product_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b);
void add_product_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b, ProductLibrary library);

}  // namespace shardwise::kernels
