#include "shardwise/kernels/bf16_pack_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

inline uint32_t pair(Bf16 first, Bf16 second) {
  return first.bits | uint32_t{second.bits} << 16;
}

void pairs_row(uint32_t* __restrict to, const Bf16* __restrict first, const Bf16* __restrict second,
               int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) to[j] = pair(first[j], second[j]);
}

void pairs(uint32_t* to, int64_t to_stride, const Bf16* from, int64_t from_stride, int64_t rows,
           int64_t columns) {
  for (int64_t i = 0; i < rows / 2; ++i) {
    const Bf16* first = from + 2 * i * from_stride;
    pairs_row(to + i * to_stride, first, first + from_stride, columns);
  }
  if (rows % 2 == 0) return;
  const Bf16* last = from + (rows - 1) * from_stride;
  for (int64_t j = 0; j < columns; ++j) to[rows / 2 * to_stride + j] = last[j].bits;
}

// Works in square blocks, whose cache lines stay in the cache while columns are written as rows.
void transposed_pairs(uint32_t* to, int64_t to_stride, const Bf16* from, int64_t from_stride, int64_t rows,
                      int64_t columns) {
  constexpr int64_t kBlock = 16;
  uint32_t block[kBlock][kBlock];
  const int64_t count = (rows + 1) / 2;
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t height = count - i < kBlock ? count - i : kBlock;
    const int64_t block_rows = rows - 2 * i < 2 * kBlock ? rows - 2 * i : 2 * kBlock;
    for (int64_t j = 0; j < columns; j += kBlock) {
      const int64_t width = columns - j < kBlock ? columns - j : kBlock;
      pairs(block[0], kBlock, from + 2 * i * from_stride + j, from_stride, block_rows, width);
      for (int64_t column = 0; column < width; ++column) {
        uint32_t* __restrict line = to + (j + column) * to_stride + i;
        for (int64_t l = 0; l < height; ++l) line[l] = block[l][column];
      }
    }
  }
}

}  // namespace

template <class T>
PackLoops<T> pack_loops() {
  return {pairs, transposed_pairs};
}
template PackLoops<Bf16> pack_loops<Bf16>();

}  // namespace shardwise::kernels::SHARDWISE_ISA
