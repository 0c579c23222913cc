// What computes with a quantized weight on another device than the CPU: the kernels of its table.
#pragma once
#include "shardwise/quant/matrix.h"

namespace shardwise::quant {

/// Computes y = x Wᵀ for up to kMostDeviceRows rows, each with the bits that it has alone. Shapes: `x`
/// [m, width], `y` [m, rows] contiguous, of one dtype: fp32 or bf16.
void product_on_device(const at::Tensor& y, const at::Tensor& x, const Matrix& w);
inline constexpr int64_t kMostDeviceRows = 8;

/// As dequantize_out of panels.h.
void dequantize_on_device(const at::Tensor& w, const Matrix& matrix, const base::Range& rows);

/// As embedding_out of product.h.
void embedding_on_device(const at::Tensor& y, const at::Tensor& ids, const Matrix& table, int64_t begin);

}  // namespace shardwise::quant
