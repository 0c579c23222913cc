#include "shardwise/kernels/panel_rows_bf16.h"

#include <immintrin.h>

#include <algorithm>

#include "shardwise/base/prefetch.h"

namespace shardwise::kernels::avx512_bf16 {
namespace {

using base::Bf16;

constexpr int kLanes = 16, kVectors = kPanelOutputs / kLanes;
/// Rows whose sums with 64 outputs the registers hold, beside a line of the weight.
constexpr int64_t kMostRows = 6;

__m512bh pairs(const void* from) {
  return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from));
}

__m512bh pair(const Bf16* two) {
  int32_t word;
  __builtin_memcpy(&word, two, sizeof(word));
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
}

/// The last passes over the lines prefetch what is read next: the rows of x, which many passes read, would
/// displace it from the second-level cache before.
constexpr int64_t kPrefetchingPasses = 16;

/// What one of several passes over the lines prefetches, a chunk of the size of a line at some of them: its
/// part of what is read next, or, if it is the only pass over lines in memory, those shortly ahead.
class Prefetch {
 public:
  Prefetch(const uint8_t* line, int64_t lines, const ReadNext& next, int64_t pass, int64_t passes) {
    const int64_t parts = std::min(passes, kPrefetchingPasses), part = pass - (passes - parts);
    if (part < 0) return;
    const int64_t chunks = (next.bytes + kPanelLineBytes - 1) / kPanelLineBytes;
    const int64_t begin = chunks * part / parts, count = chunks * (part + 1) / parts - begin;
    if (count == 0) return;
    every_ = std::max<int64_t>(lines / count, 1);
    ahead_ = next.begin + begin * kPanelLineBytes;
    if (passes == 1 && next.begin == line + lines * kPanelLineBytes) ahead_ = line + base::prefetch_bytes();
  }

  void at(int64_t line) const {
    if (every_ == 0 || line % every_ != 0) return;
    for (int64_t byte = 0; byte < kPanelLineBytes; byte += 64)
      _mm_prefetch(reinterpret_cast<const char*>(ahead_ + line / every_ * kPanelLineBytes + byte),
                   _MM_HINT_T1);
  }

 private:
  int64_t every_ = 0;  // lines from a chunk to the next; 0: none
  const uint8_t* ahead_ = nullptr;
};

template <int rows>
void add(float* y, const Bf16* x, int64_t x_stride, const uint8_t* line, int64_t lines,
         const Prefetch& prefetch) {
  __m512 sums[rows][kVectors];
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_loadu_ps(y + r * kPanelOutputs + v * kLanes);
  for (int64_t s = 0; s < lines; ++s, line += kPanelLineBytes) {
    prefetch.at(s);
    __m512bh weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = pairs(line + v * 64);
    for (int r = 0; r < rows; ++r) {
      const __m512bh two = pair(x + r * x_stride + 2 * s);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], weights[v], two);
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(y + r * kPanelOutputs + v * kLanes, sums[r][v]);
}

using Add = void (*)(float*, const Bf16*, int64_t, const uint8_t*, int64_t, const Prefetch&);
constexpr Add kByRows[] = {add<1>, add<2>, add<3>, add<4>, add<5>, add<6>};

}  // namespace

void add_lines(float* y, const Bf16* x, int64_t x_stride, int64_t rows, const uint8_t* line, int64_t lines,
               const ReadNext& next) {
  // Equal parts: 8 rows are 4 and 4, not 6 and 2.
  const int64_t parts = (rows + kMostRows - 1) / kMostRows;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
    kByRows[end - begin - 1](y + begin * kPanelOutputs, x + begin * x_stride, x_stride, line, lines,
                             {line, lines, next, part, parts});
  }
}

}  // namespace shardwise::kernels::avx512_bf16
