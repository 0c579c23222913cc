#include "shardwise/quant/dequantize_isa.h"

#include "shardwise/base/element.h"

namespace shardwise::quant::SHARDWISE_ISA {
namespace {

template <class T>
T dequantized(int quantized, float zero_point, float scale) {
  const float value = (static_cast<float>(quantized) - zero_point) * scale;
  return base::narrow<T>(static_cast<base::Accumulator<T>>(value));
}

template <int bits>
int quantized_at(const uint8_t* packed, int64_t i) {
  if constexpr (bits == 8) return packed[i];
  return packed[i / 2] >> (i % 2 * 4) & 15;
}

/// Dequantizes `count` columns of one group, from the quantized value `first` on.
template <class T>
void run8(T* __restrict w, const uint8_t* __restrict packed, int64_t first, int64_t count, float zero_point,
          float scale) {
  for (int64_t j = 0; j < count; ++j) w[j] = dequantized<T>(packed[first + j], zero_point, scale);
}

template <class T>
void run4(T* __restrict w, const uint8_t* __restrict packed, int64_t first, int64_t count, float zero_point,
          float scale) {
  const int64_t head = first % 2 != 0 && count > 0, pairs = (count - head) / 2;
  if (head) w[0] = dequantized<T>(packed[first / 2] >> 4, zero_point, scale);
  const uint8_t* __restrict bytes = packed + (first + head) / 2;
  T* __restrict even = w + head;
  for (int64_t j = 0; j < pairs; ++j) {
    even[2 * j] = dequantized<T>(bytes[j] & 15, zero_point, scale);
    even[2 * j + 1] = dequantized<T>(bytes[j] >> 4, zero_point, scale);
  }
  if (head + 2 * pairs < count) w[count - 1] = dequantized<T>(bytes[pairs] & 15, zero_point, scale);
}

template <int bits, class T>
void row_in_order(T* w, const QuantizedRow& row, const RowShape& shape) {
  int64_t column = 0;
  for (int64_t group = 0; column < shape.width; ++group) {
    int64_t end = (group + 1) * shape.group_size - shape.offset_in_group;
    end = end < shape.width ? end : shape.width;
    const auto run = bits == 4 ? run4<T> : run8<T>;
    run(w + column, row.qweight, shape.first_value + column, end - column, row.zero_points[group],
        row.scales[group]);
    column = end;
  }
}

template <int bits, class T>
void row_by_column(T* w, const QuantizedRow& row, const RowShape& shape) {
  for (int64_t column = 0; column < shape.width; ++column) {
    const int32_t group = shape.group_index[column];
    w[column] = dequantized<T>(quantized_at<bits>(row.qweight, shape.first_value + column),
                               row.zero_points[group], row.scales[group]);
  }
}

template <int bits, class T>
void row(T* w, const QuantizedRow& row, const RowShape& shape) {
  if (shape.group_index) return row_by_column<bits>(w, row, shape);
  row_in_order<bits>(w, row, shape);
}

}  // namespace

template <class T>
DequantizeLoops<T> dequantize_loops() {
  return {row<4, T>, row<8, T>};
}
SHARDWISE_INSTANTIATE(DequantizeLoops, dequantize_loops)

}  // namespace shardwise::quant::SHARDWISE_ISA
