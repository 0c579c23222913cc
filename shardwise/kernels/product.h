// Matrix products of the linear layers, through whichever of torch's two libraries is faster for the shape,
// or through loops of our own where a few rows meet a weight.
//
// On AVX-512 processors torch's default for fp32, MKL, runs AVX2 code on AMD; oneDNN, which torch carries
// too, runs AVX-512 code and was measured at 2.2 times its speed (docs/adr/0007). The choice depends on
// processor, dtype and shape alone, so it is the same on every rank and in every run.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// y = a·b. Shapes: `a` [m, k], `b` [k, n], either may be transposed; `y` [m, n] contiguous. One dtype.
/// Errors: c10::ValueError when the shapes or dtypes do not fit.
void product_out(at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

/// y += a·b, otherwise the same.
void add_product_(at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

}  // namespace shardwise::kernels
