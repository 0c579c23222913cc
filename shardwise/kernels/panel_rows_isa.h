// Products of rows with a panel of a quantized weight, in fp32 without rounding activations.
#pragma once
#include "shardwise/kernels/isa.h"
#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels {

template <class T>
struct PanelRowsLoops {
  /// y[i · 64 + o] = Σ_k x[i · x_stride + k] · value(k, o) for i < rows; `x` is in the panel's order of
  /// columns, and zero in padding. Sums in an order that depends only on the shape.
  void (*multiply)(T* y, const T* x, int64_t x_stride, int64_t rows, const uint8_t* panel,
                   const PanelShape& shape);
};
SHARDWISE_PER_ISA(PanelRowsLoops, panel_rows_loops)

}  // namespace shardwise::kernels
