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

template <int bits>
void line_pairs(uint32_t* __restrict to, const uint32_t* __restrict words, const PanelHeader& header) {
  for (int pair = 0; pair < 16 / bits; ++pair) {
    uint32_t* __restrict out = to + pair * kPanelOutputs;
    for (int o = 0; o < kPanelOutputs; ++o) {
      const auto value = [&](int column) {
        const int32_t level = quantized_at<bits>(words[o], column) - header.zero_points[o];
        return uint32_t{base::narrow<base::Bf16>(static_cast<float>(level) * header.scales[o]).bits};
      };
      out[o] = value(2 * pair) | value(2 * pair + 1) << 16;
    }
  }
}

template <int bits>
void pairs_of(uint32_t* to, const uint8_t* panel, int64_t first_run, int64_t run_count,
              const PanelShape& shape) {
  PanelHeader header = {};
  int64_t header_at = -1;
  for (const PanelRun* run = shape.runs + first_run; run != shape.runs + first_run + run_count; ++run) {
    if (run->header != header_at) read(header, panel + run->header, shape);
    header_at = run->header;
    const auto* words = reinterpret_cast<const uint32_t*>(panel + run->begin);
    for (int64_t line = 0; line < run->lines; ++line, words += kPanelOutputs) {
      line_pairs<bits>(to, words, header);
      to += 16 / bits * kPanelOutputs;
    }
  }
}

void pairs(uint32_t* to, const uint8_t* panel, int64_t first_run, int64_t run_count,
           const PanelShape& shape) {
  if (shape.bits == 4) return pairs_of<4>(to, panel, first_run, run_count, shape);
  pairs_of<8>(to, panel, first_run, run_count, shape);
}

}  // namespace

template <class T>
PanelValuesLoops<T> panel_values_loops() {
  return {dequantize<T>};
}
SHARDWISE_INSTANTIATE(PanelValuesLoops, panel_values_loops)

template <class T>
PanelPairsLoops<T> panel_pairs_loops() {
  return {pairs};
}
template PanelPairsLoops<Bf16> panel_pairs_loops<Bf16>();

}  // namespace shardwise::kernels::SHARDWISE_ISA
