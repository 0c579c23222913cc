// The values of a panel of a packed weight.
#pragma once
#include "shardwise/kernels/isa.h"
#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels {

template <class T>
struct PanelValuesLoops {
  /// w[k] = the value of column k, in the panel's order, of output `output` of the panel.
  void (*dequantize)(T* w, const uint8_t* panel, int64_t output, const PanelShape& shape);
};
SHARDWISE_PER_ISA(PanelValuesLoops, panel_values_loops)

}  // namespace shardwise::kernels
