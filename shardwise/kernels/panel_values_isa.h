// The values of a panel of a packed weight, and their packing.
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

template <class T>
struct PanelPairsLoops {
  /// Writes the values of `run_count` runs from `first_run` on as lines of a bf16 panel: to[p · 64 + o]
  /// contains the columns 2p and 2p + 1 of output o.
  void (*pairs)(uint32_t* to, const uint8_t* panel, int64_t first_run, int64_t run_count,
                const PanelShape& shape);
};
SHARDWISE_PER_ISA(PanelPairsLoops, panel_pairs_loops)

}  // namespace shardwise::kernels
