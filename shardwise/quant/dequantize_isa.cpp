#include "shardwise/quant/dequantize_isa.h"

#include "shardwise/kernels/loops.h"

namespace shardwise::quant::SHARDWISE_ISA {
namespace {

using kernels::Accumulator;

template <class T>
T number(int code, float zero, float scale) {
  const float value = (static_cast<float>(code) - zero) * scale;
  return kernels::SHARDWISE_ISA::narrow<T>(static_cast<Accumulator<T>>(value));
}

template <int bits>
int code_at(const uint8_t* codes, int64_t i) {
  if constexpr (bits == 8) return codes[i];
  return codes[i / 2] >> (i % 2 * 4) & 15;
}

/// `count` columns of one group, whose codes begin with number `first`.
template <class T>
void run8(T* __restrict w, const uint8_t* __restrict codes, int64_t first, int64_t count, float zero,
          float scale) {
  for (int64_t j = 0; j < count; ++j) w[j] = number<T>(codes[first + j], zero, scale);
}

template <class T>
void run4(T* __restrict w, const uint8_t* __restrict codes, int64_t first, int64_t count, float zero,
          float scale) {
  const int64_t head = first % 2 != 0 && count > 0, pairs = (count - head) / 2;
  if (head) w[0] = number<T>(codes[first / 2] >> 4, zero, scale);
  const uint8_t* __restrict bytes = codes + (first + head) / 2;
  T* __restrict even = w + head;
  for (int64_t j = 0; j < pairs; ++j) {
    even[2 * j] = number<T>(bytes[j] & 15, zero, scale);
    even[2 * j + 1] = number<T>(bytes[j] >> 4, zero, scale);
  }
  if (head + 2 * pairs < count) w[count - 1] = number<T>(bytes[pairs] & 15, zero, scale);
}

template <int bits, class T>
void row_in_order(T* w, const RowCodes& row, const RowShape& shape) {
  int64_t column = 0;
  for (int64_t group = 0; column < shape.width; ++group) {
    int64_t end = (group + 1) * shape.group_size - shape.into_group;
    end = end < shape.width ? end : shape.width;
    const auto run = bits == 4 ? run4<T> : run8<T>;
    run(w + column, row.codes, shape.first_code + column, end - column, row.zeros[group], row.scales[group]);
    column = end;
  }
}

template <int bits, class T>
void row_by_column(T* w, const RowCodes& row, const RowShape& shape) {
  for (int64_t column = 0; column < shape.width; ++column) {
    const int32_t group = shape.group_of[column];
    w[column] =
        number<T>(code_at<bits>(row.codes, shape.first_code + column), row.zeros[group], row.scales[group]);
  }
}

template <int bits, class T>
void row(T* w, const RowCodes& row, const RowShape& shape) {
  if (shape.group_of) return row_by_column<bits>(w, row, shape);
  row_in_order<bits>(w, row, shape);
}

}  // namespace

template <class T>
DequantizeLoops<T> dequantize_loops() {
  return {row<4, T>, row<8, T>};
}
SHARDWISE_INSTANTIATE(DequantizeLoops, dequantize_loops)

}  // namespace shardwise::quant::SHARDWISE_ISA
