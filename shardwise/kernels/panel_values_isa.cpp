#include "shardwise/kernels/panel_values_isa.h"

#include "shardwise/kernels/panel_header.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <int bits, class T>
void dequantize_output(T* w, const uint8_t* panel, int64_t output, const PanelShape& shape) {
  for (const PanelRun* run = shape.runs; run != shape.runs + shape.run_count; ++run) {
    const uint8_t* header = panel + run->header;
    const float scale = base::widen(reinterpret_cast<const base::Fp16*>(header)[output]);
    const int32_t zero_point =
        shape.has_zero_points ? header[2 * kPanelOutputs + output] : shape.symmetric_zero_point();
    const auto* words = reinterpret_cast<const uint32_t*>(panel + run->begin) + output;
    for (int64_t line = 0; line < run->lines; ++line, words += kPanelOutputs, w += 32 / bits) {
      for (int column = 0; column < 32 / bits; ++column) {
        const float value = static_cast<float>(quantized_at<bits>(*words, column) - zero_point) * scale;
        w[column] = base::narrow<T>(static_cast<base::Accumulator<T>>(value));
      }
    }
  }
}

template <class T>
void widen_output(T* w, const uint8_t* panel, int64_t output, const PanelShape& shape) {
  for (const PanelRun* run = shape.runs; run != shape.runs + shape.run_count; ++run) {
    const auto* words = reinterpret_cast<const uint32_t*>(panel + run->begin) + output;
    for (int64_t line = 0; line < run->lines; ++line, words += kPanelOutputs, w += 2) {
      const Bf16 first{static_cast<uint16_t>(*words)}, second{static_cast<uint16_t>(*words >> 16)};
      w[0] = base::narrow<T>(static_cast<base::Accumulator<T>>(base::widen(first)));
      w[1] = base::narrow<T>(static_cast<base::Accumulator<T>>(base::widen(second)));
    }
  }
}

template <class T>
void dequantize(T* w, const uint8_t* panel, int64_t output, const PanelShape& shape) {
  if (shape.bits == 16) return widen_output(w, panel, output, shape);
  if (shape.bits == 4) return dequantize_output<4>(w, panel, output, shape);
  dequantize_output<8>(w, panel, output, shape);
}

}  // namespace

template <class T>
PanelValuesLoops<T> panel_values_loops() {
  return {dequantize<T>};
}
SHARDWISE_INSTANTIATE(PanelValuesLoops, panel_values_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
