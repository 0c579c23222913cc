// Products with a quantized weight, which is expanded a block of rows at a time.
#pragma once
#include "shardwise/quant/matrix.h"

namespace shardwise::quant {

/// y = x Wᵀ. Shapes: `x` [m, width], `y` [m, rows] contiguous, one dtype, in which W is expanded. Cost: 4 MB
/// beside it, or 64 rows of W. The same bits for the same local matrix, whichever rank holds it. Errors:
/// c10::ValueError when shapes or dtypes do not fit.
void product_out(at::Tensor& y, const at::Tensor& x, const Matrix& w);

/// y[i] = the row ids[i] − begin of W, or zeros where W does not hold it: what a rank knows of an embedding.
/// Shapes: `ids` [...] int64, `y` [..., width] contiguous.
void rows_out(at::Tensor& y, const at::Tensor& ids, const Matrix& w, int64_t begin);

}  // namespace shardwise::quant
