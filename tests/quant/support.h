// Random quantized weights, and the fp64 values that they stand for.
#pragma once
#include "shardwise/quant/panels.h"

namespace shardwise::testing {

/// A kind of quantized weight.
struct QuantizedKind {
  const char* name;
  quant::Format format;
  base::Range columns;  // the shard's, of in_features
  int64_t in_features;
};

/// Returns the kinds for a shard of `width` columns: bits, groups, zero points, cut groups, act-order.
std::vector<QuantizedKind> kinds_of(int64_t width);

/// Returns a matrix with random quantized values, fp16 scales and zero points.
quant::Matrix random_matrix(const QuantizedKind& kind, int64_t rows, uint64_t seed);

/// Returns the panels of a matrix.
quant::Panels packed(const quant::Matrix& matrix);

/// Returns the values of a matrix in fp32, computed element by element from the packed words.
at::Tensor values_of(const quant::Matrix& matrix);

/// Returns the dequantized weight.
at::Tensor dequantized(const quant::Panels& panels, at::ScalarType dtype);

}  // namespace shardwise::testing
