#include "shardwise/kernels/column_sum_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int64_t kColumns = 512;  // a block's partial sums stay in the first-level cache
constexpr int64_t kRows = 64;      // rows per partial sum: short sums have small rounding errors

template <class T>
void add_row(Accumulator<T>* __restrict sum, const T* __restrict x, int64_t width) {
  for (int64_t i = 0; i < width; ++i) sum[i] += widen(x[i]);
}

template <class T>
void add_four_rows(Accumulator<T>* __restrict sum, const T* __restrict x, int64_t width, int64_t stride) {
  const T *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride;
  for (int64_t i = 0; i < width; ++i) sum[i] += (widen(x[i]) + widen(x1[i])) + (widen(x2[i]) + widen(x3[i]));
}

template <class T>
void add_block(Accumulator<T>* __restrict sum, const T* x, int64_t rows, int64_t width, int64_t stride) {
  Accumulator<T> part[kColumns] = {};
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) add_four_rows(part, x + row * stride, width, stride);
  for (; row < rows; ++row) add_row(part, x + row * stride, width);
  for (int64_t i = 0; i < width; ++i) sum[i] += part[i];
}

template <class T>
void add_rows(Accumulator<T>* sum, const T* x, int64_t rows, int64_t width, int64_t stride) {
  if (rows == 1) return add_row(sum, x, width);
  for (int64_t column = 0; column < width; column += kColumns) {
    const int64_t columns = width - column < kColumns ? width - column : kColumns;
    for (int64_t row = 0; row < rows; row += kRows) {
      const int64_t count = rows - row < kRows ? rows - row : kRows;
      add_block(sum + column, x + row * stride + column, count, columns, stride);
    }
  }
}

}  // namespace

template <class T>
ColumnSumLoops<T> column_sum_loops() {
  return {add_rows<T>};
}
SHARDWISE_INSTANTIATE(ColumnSumLoops, column_sum_loops)

}  // namespace shardwise::kernels::SHARDWISE_ISA
