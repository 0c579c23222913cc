#include "shardwise/kernels/widened_product_isa.h"

#include "shardwise/kernels/bf16_pack_isa.h"
#include "shardwise/kernels/vectors.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

// A block of a, one of b and its sums fit the second-level cache; a panel of b, the first-level one. a's rows
// are an odd number of cache lines apart, so that they do not compete for few sets.
constexpr int64_t kDepth = 256, kRows = 120, kPanels = 4, kPanel = kWidenedColumns;
constexpr int64_t kStrideA = kDepth + 16, kStrideSums = kPanels * kPanel;
constexpr int kTileRows = kVectorBytes == 64 ? 12 : 4;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;
constexpr int64_t kLanes = kVectorLanes<float>;

int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

struct Blocks {
  alignas(64) float a[kRows * kStrideA];
  alignas(64) uint32_t b[kPanels][kDepth][kPanel / 2];  // pairs of columns
  alignas(64) float sums[kRows * kStrideSums];  // of each 2·kLanes columns the even ones, then the odd ones
};

void pack_a(Blocks& blocks, const WidenedProduct<Bf16>& p, int64_t row, int64_t rows, int64_t k,
            int64_t depth) {
  for (int64_t i = 0; i < rows; ++i) {
    const Bf16* __restrict from = p.a + (row + i) * p.a_stride + k;
    float* __restrict to = blocks.a + i * kStrideA;
    for (int64_t t = 0; t < depth; ++t) to[t] = widen(from[t]);
  }
}

/// dy is transposed: its rows are the depth.
void pack_a(Blocks& blocks, const WidenedGradient<Bf16>& p, int64_t row, int64_t rows, int64_t k,
            int64_t depth) {
  for (int64_t t = 0; t < depth; ++t) {
    const Bf16* __restrict from = p.dy + (k + t) * p.dy_stride + row;
    for (int64_t i = 0; i < rows; ++i) blocks.a[i * kStrideA + t] = widen(from[i]);
  }
}

using Panel = uint32_t[kDepth][kPanel / 2];

/// `from` has rows of the depth.
void pack_rows(Panel& to, const Bf16* from, int64_t stride, int64_t columns, int64_t depth) {
  for (int64_t t = 0; t < depth; ++t)
    __builtin_memcpy(to[t], from + t * stride, columns * int64_t{sizeof(Bf16)});
}

/// Packs the columns [column, column + columns) of b, zero beyond the last one, and returns the panels.
template <class Pack>
int64_t pack_b(Blocks& blocks, int64_t columns, int64_t depth, Pack pack) {
  const int64_t panels = (columns + kPanel - 1) / kPanel;
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t first = panel * kPanel, width = smaller(kPanel, columns - first);
    if (width < kPanel) __builtin_memset(blocks.b[panel], 0, depth * int64_t{sizeof(blocks.b[0][0])});
    pack(blocks.b[panel], first, width);
  }
  return panels;
}

/// Adds to the sums of some rows and 2·kLanes columns, which stay in registers.
template <int rows>
inline void add_tile(float* sums, const float* a, const uint32_t* pairs, int64_t depth) {
  Floats even[rows], odd[rows];
#pragma GCC unroll 12
  for (int i = 0; i < rows; ++i) {
    even[i] = *reinterpret_cast<const Floats*>(sums + i * kStrideSums);
    odd[i] = *reinterpret_cast<const Floats*>(sums + i * kStrideSums + kLanes);
  }
  for (int64_t t = 0; t < depth; ++t) {
    const Words words = *reinterpret_cast<const Words*>(pairs + t * (kPanel / 2));
    const Floats low = reinterpret_cast<Floats>(words << 16),
                 high = reinterpret_cast<Floats>(words & 0xffff0000u);
#pragma GCC unroll 12
    for (int i = 0; i < rows; ++i) {
      even[i] += a[i * kStrideA + t] * low;
      odd[i] += a[i * kStrideA + t] * high;
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < rows; ++i) {
    *reinterpret_cast<Floats*>(sums + i * kStrideSums) = even[i];
    *reinterpret_cast<Floats*>(sums + i * kStrideSums + kLanes) = odd[i];
  }
}

template <int rows>
inline void add_last_tile(float* sums, const float* a, const uint32_t* pairs, int64_t depth, int64_t count) {
  if (count == rows) return add_tile<rows>(sums, a, pairs, depth);
  if constexpr (rows > 1) add_last_tile<rows - 1>(sums, a, pairs, depth, count);
}

void clear_sums(Blocks& blocks, int64_t rows) {
  __builtin_memset(blocks.sums, 0, rows * kStrideSums * int64_t{sizeof(float)});
}

void add_products(Blocks& blocks, int64_t rows, int64_t panels, int64_t depth) {
  for (int64_t column = 0; column < panels * kPanel; column += 2 * kLanes) {
    const uint32_t* pairs = blocks.b[column / kPanel][0] + column % kPanel / 2;
    int64_t i = 0;
    for (; i + kTileRows <= rows; i += kTileRows)
      add_tile<kTileRows>(blocks.sums + i * kStrideSums + column, blocks.a + i * kStrideA, pairs, depth);
    if (i < rows)
      add_last_tile<kTileRows - 1>(blocks.sums + i * kStrideSums + column, blocks.a + i * kStrideA, pairs,
                                   depth, rows - i);
  }
}

void store(const Blocks& blocks, const WidenedProduct<Bf16>& p, int64_t row, int64_t rows, int64_t column,
           int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    Bf16* __restrict to = p.y + (row + i) * p.y_stride + column;
    for (int64_t j = 0; j < columns; j += 2 * kLanes) {
      const float* __restrict from = blocks.sums + i * kStrideSums + j;
      Bf16 rounded[2 * kLanes];
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        rounded[2 * lane] = narrow<Bf16>(from[lane]);
        rounded[2 * lane + 1] = narrow<Bf16>(from[kLanes + lane]);
      }
      __builtin_memcpy(to + j, rounded, smaller(2 * kLanes, columns - j) * int64_t{sizeof(Bf16)});
    }
  }
}

/// Prefetches `columns` rows of `depth` elements into the second-level cache. Processors prefetch within a
/// page by themselves, and the rows of a wide weight begin in different ones.
void prefetch_rows(const Bf16* from, int64_t stride, int64_t columns, int64_t depth) {
  constexpr int64_t kLine = 64 / sizeof(Bf16);
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t t = 0; t < depth; t += kLine)
      __builtin_prefetch(from + j * stride + t, /*rw=*/0, /*locality=*/2);
}

void multiply_block(Blocks& blocks, const WidenedProduct<Bf16>& p, int64_t row, int64_t rows, int64_t column,
                    int64_t columns) {
  clear_sums(blocks, rows);
  for (int64_t k = 0; k < p.depth; k += kDepth) {
    const int64_t depth = smaller(kDepth, p.depth - k);
    pack_a(blocks, p, row, rows, k, depth);
    const int64_t panels = pack_b(blocks, columns, depth, [&](Panel& to, int64_t first, int64_t width) {
      const int64_t j = column + first;
      if (p.b_is_transposed) {
        const Bf16* b = p.b + j * p.b_stride + k;
        if (k + kDepth < p.depth)
          prefetch_rows(b + kDepth, p.b_stride, width, smaller(kDepth, p.depth - k - kDepth));
        pack_loops<Bf16>().transposed_pairs(to[0], kPanel / 2, b, p.b_stride, width, depth);
      } else {
        pack_rows(to, p.b + k * p.b_stride + j, p.b_stride, width, depth);
      }
    });
    add_products(blocks, rows, panels, depth);
  }
  store(blocks, p, row, rows, column, columns);
}

void multiply(const WidenedProduct<Bf16>& p, int64_t begin, int64_t end) {
  Blocks blocks;
  for (int64_t row = 0; row < p.rows; row += kRows) {
    for (int64_t column = begin; column < end; column += kPanels * kPanel)
      multiply_block(blocks, p, row, smaller(kRows, p.rows - row), column,
                     smaller(kPanels * kPanel, end - column));
  }
}

void add_sums(const Blocks& blocks, float* to, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* __restrict sums = blocks.sums + i * kStrideSums;
    float* __restrict row = to + i * stride;
    for (int64_t j = 0; j < columns; j += 2 * kLanes) {
      float in_order[2 * kLanes];
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        in_order[2 * lane] = sums[j + lane];
        in_order[2 * lane + 1] = sums[j + kLanes + lane];
      }
      const int64_t count = smaller(2 * kLanes, columns - j);
      for (int64_t lane = 0; lane < count; ++lane) row[j + lane] += in_order[lane];
    }
  }
}

/// A block of dyᵀ, whose transposition costs, serves all columns.
void add(const WidenedGradient<Bf16>& p, int64_t begin, int64_t end) {
  Blocks blocks;
  for (int64_t row = 0; row < p.rows; row += kRows) {
    const int64_t rows = smaller(kRows, p.rows - row);
    for (int64_t k = 0; k < p.depth; k += kDepth) {
      const int64_t depth = smaller(kDepth, p.depth - k);
      pack_a(blocks, p, row, rows, k, depth);
      for (int64_t column = begin; column < end; column += kPanels * kPanel) {
        const int64_t columns = smaller(kPanels * kPanel, end - column);
        const int64_t panels = pack_b(blocks, columns, depth, [&](Panel& to, int64_t first, int64_t width) {
          pack_rows(to, p.x + k * p.x_stride + column + first, p.x_stride, width, depth);
        });
        clear_sums(blocks, rows);
        add_products(blocks, rows, panels, depth);
        add_sums(blocks, p.to + row * p.to_stride + column, p.to_stride, rows, columns);
      }
    }
  }
}

}  // namespace

template <class T>
WidenedProductLoops<T> widened_product_loops() {
  return {multiply, add};
}
template WidenedProductLoops<Bf16> widened_product_loops<Bf16>();

}  // namespace shardwise::kernels::SHARDWISE_ISA
