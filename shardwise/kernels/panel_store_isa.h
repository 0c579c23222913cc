// Stores the products of rows with a panel of a packed weight.
#pragma once
#include "shardwise/kernels/isa.h"

namespace shardwise::kernels {

template <class T>
struct PanelStoreLoops {
  /// y[i · stride + o] = products[i · 64 + o], rounded, for i < rows and o < outputs.
  void (*store)(T* y, int64_t stride, const float* products, int64_t rows, int64_t outputs);
};
SHARDWISE_PER_ISA(PanelStoreLoops, panel_store_loops)

}  // namespace shardwise::kernels
