// A group's scales and zero points. Only for `*_isa.cpp`.
#pragma once
#include "shardwise/base/element.h"
#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels::SHARDWISE_ISA {

/// The header of a panel's group, widened.
struct PanelHeader {
  float scales[kPanelOutputs];
  int32_t zero_points[kPanelOutputs];
};

inline void read(PanelHeader& header, const uint8_t* bytes, const PanelShape& shape) {
  const auto* scales = reinterpret_cast<const base::Fp16*>(bytes);
  const uint8_t* zero_points = bytes + 2 * kPanelOutputs;
  for (int o = 0; o < kPanelOutputs; ++o) header.scales[o] = base::widen(scales[o]);
  for (int o = 0; o < kPanelOutputs; ++o)
    header.zero_points[o] = shape.has_zero_points ? zero_points[o] : shape.symmetric_zero_point();
}

/// Returns the position of a line's column in the four bytes of an output.
template <int bits>
constexpr int shift_of(int column) {
  if (bits == 8) return 8 * column;
  return column < 4 ? 8 * column : 8 * (column - 4) + 4;
}

/// Returns column `column` of the four bytes `word`.
template <int bits>
[[gnu::always_inline]] inline int32_t quantized_at(uint32_t word, int column) {
  return static_cast<int32_t>(word >> shift_of<bits>(column) & ((1u << bits) - 1));
}

}  // namespace shardwise::kernels::SHARDWISE_ISA
