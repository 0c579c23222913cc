// Products of rows with a packed bf16 weight (panel_shape.h), for processors with AVX512-BF16.
//
// vdpbf16ps multiplies pairs of columns and accumulates in fp32; it treats denormal inputs and results as
// zero.
#pragma once
#include "shardwise/base/element.h"
#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels::avx512_bf16 {

/// Bytes in memory that are read after the lines of a call. If they follow these, they are in memory too.
struct ReadNext {
  const uint8_t* begin;
  int64_t bytes;
};

/// y[row · 64 + o] += Σ_j x[row · x_stride + j] · w[o][j] for the 2·lines columns of `lines` lines and `rows`
/// rows, any number. Sums in an order that depends on the lines alone. Prefetches `next`, which may be empty.
void add_lines(float* y, const base::Bf16* x, int64_t x_stride, int64_t rows, const uint8_t* line,
               int64_t lines, const ReadNext& next);

}  // namespace shardwise::kernels::avx512_bf16
