#include "shardwise/kernels/bf16_pack_isa.h"

#include <utility>

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

constexpr int64_t kBlock = 16;

/// A row of a block of pairs.
using Words = uint32_t __attribute__((vector_size(4 * kBlock), aligned(4), may_alias));

/// Exchanges the words of `upper` whose lane has the bit `step` with those of `lower` that lack it.
template <size_t step, size_t... I>
inline void exchange(Words& upper, Words& lower, std::index_sequence<I...>) {
  const Words first = upper, second = lower;
  upper = __builtin_shufflevector(first, second, (I & step ? kBlock + I - step : I)...);
  lower = __builtin_shufflevector(first, second, (I & step ? kBlock + I : I + step)...);
}

/// Transposes squares of 1, 2, 4 and 8 words.
template <size_t step>
inline void transpose(Words* block) {
  for (size_t i = 0; i < kBlock; ++i) {
    if ((i & step) == 0) exchange<step>(block[i], block[i + step], std::make_index_sequence<kBlock>());
  }
  if constexpr (2 * step < kBlock) transpose<2 * step>(block);
}

/// Transposes 32 rows of 16 columns.
void transpose_block(uint32_t* to, int64_t to_stride, const Bf16* from, int64_t from_stride) {
  using Halves [[gnu::vector_size(2 * kBlock)]] = uint16_t;
  Words block[kBlock];
  for (int64_t i = 0; i < kBlock; ++i, from += 2 * from_stride) {
    Halves first, second;
    __builtin_memcpy(&first, from, sizeof(first));
    __builtin_memcpy(&second, from + from_stride, sizeof(second));
    block[i] = __builtin_convertvector(first, Words) | __builtin_convertvector(second, Words) << 16;
  }
  transpose<1>(block);
  for (int64_t column = 0; column < kBlock; ++column)
    *reinterpret_cast<Words*>(to + column * to_stride) = block[column];
}

/// Transposes up to 32 rows of up to 16 columns.
void transpose_part(uint32_t* to, int64_t to_stride, const Bf16* from, int64_t from_stride, int64_t rows,
                    int64_t columns) {
  uint32_t block[kBlock][kBlock];
  pairs(block[0], kBlock, from, from_stride, rows, columns);
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t i = 0; i < (rows + 1) / 2; ++i) to[column * to_stride + i] = block[i][column];
  }
}

// Works in square blocks, whose cache lines stay in the cache while columns are written as rows.
void transposed_pairs(uint32_t* to, int64_t to_stride, const Bf16* from, int64_t from_stride, int64_t rows,
                      int64_t columns) {
  for (int64_t row = 0; row < rows; row += 2 * kBlock) {
    const int64_t height = rows - row < 2 * kBlock ? rows - row : 2 * kBlock;
    for (int64_t column = 0; column < columns; column += kBlock) {
      const int64_t width = columns - column < kBlock ? columns - column : kBlock;
      uint32_t* block = to + column * to_stride + row / 2;
      const Bf16* source = from + row * from_stride + column;
      if (height == 2 * kBlock && width == kBlock) {
        transpose_block(block, to_stride, source, from_stride);
      } else {
        transpose_part(block, to_stride, source, from_stride, height, width);
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
