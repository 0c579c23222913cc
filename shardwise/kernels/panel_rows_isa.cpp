#include "shardwise/kernels/panel_rows_isa.h"

#include "shardwise/base/prefetch.h"
#include "shardwise/kernels/panel_header.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

template <int bits>
void add_line(float* __restrict sums, const uint32_t* __restrict words, const int32_t* __restrict zero_points,
              const float* __restrict x) {
  for (int o = 0; o < kPanelOutputs; ++o) {
    float sum = sums[o];
#pragma GCC unroll 8
    for (int column = 0; column < 32 / bits; ++column) {
      sum += x[column] * static_cast<float>(quantized_at<bits>(words[o], column) - zero_points[o]);
    }
    sums[o] = sum;
  }
}

template <int bits>
void multiply_row(float* __restrict y, const float* __restrict x, const uint8_t* panel,
                  const PanelShape& shape) {
  const int64_t ahead = base::prefetch_bytes();
  PanelHeader header = {};
  int64_t header_at = -1;
  for (int o = 0; o < kPanelOutputs; ++o) y[o] = 0;
  for (const PanelRun* run = shape.runs; run != shape.runs + shape.run_count; ++run) {
    if (run->header != header_at) read(header, panel + run->header, shape);
    header_at = run->header;
    float sums[kPanelOutputs] = {};
    const uint8_t* line = panel + run->begin;
    for (int64_t i = 0; i < run->lines; ++i, line += kPanelLineBytes, x += 32 / bits) {
      for (int at = 0; at < kPanelLineBytes; at += 64)
        __builtin_prefetch(line + ahead + at, /*rw=*/0, /*locality=*/2);
      add_line<bits>(sums, reinterpret_cast<const uint32_t*>(line), header.zero_points, x);
    }
    for (int o = 0; o < kPanelOutputs; ++o) y[o] += sums[o] * header.scales[o];
  }
}

void multiply(float* y, const float* x, int64_t x_stride, int64_t rows, const uint8_t* panel,
              const PanelShape& shape) {
  const auto one = shape.bits == 4 ? multiply_row<4> : multiply_row<8>;
  for (int64_t row = 0; row < rows; ++row) one(y + row * kPanelOutputs, x + row * x_stride, panel, shape);
}

}  // namespace

template <class T>
PanelRowsLoops<T> panel_rows_loops() {
  return {multiply};
}
template PanelRowsLoops<float> panel_rows_loops<float>();

}  // namespace shardwise::kernels::SHARDWISE_ISA
