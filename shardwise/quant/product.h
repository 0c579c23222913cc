// Products with a quantized weight, which is dequantized one block of rows at a time.
#pragma once
#include "shardwise/quant/matrix.h"

namespace shardwise::quant {

/// Computes y = x Wᵀ. W is dequantized to the dtype of `x`. Results are bitwise equal for equal local
/// matrices. Shapes: `x` [m, width], `y` [m, rows] contiguous, of one dtype. Cost: 4 MB of scratch, or 64
/// rows of W. Errors: c10::ValueError if shapes or dtypes do not match.
void product_out(at::Tensor& y, const at::Tensor& x, const Matrix& w);

/// Looks up rows of a vocabulary shard: y[i] = row ids[i] − begin of W, or zeros if W does not contain that
/// row. Shapes: `ids` [...] int64, `y` [..., width] contiguous.
void embedding_out(at::Tensor& y, const at::Tensor& ids, const Matrix& w, int64_t begin);

}  // namespace shardwise::quant
