#include "shardwise/quant/quantize.h"

#include <ATen/ops/empty.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>

#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::quant {

using at::Tensor;
using base::Range;
using kernels::elements;
using kernels::elements_;

namespace {

constexpr float kLargestScale = 65504;  // the largest fp16 number

/// Calls f(group, first column, number of columns) for each group that overlaps `columns`. Groups and columns
/// are relative to the shard's first.
template <class F>
void for_each_group(const Format& format, int64_t in_features, const Range& columns, F f) {
  const int64_t size = format.group_size == 0 ? in_features : format.group_size;
  const Range groups = format.groups_of(columns, in_features);
  for (int64_t group = groups.begin; group < groups.end; ++group) {
    const int64_t begin = std::max(group * size, columns.begin),
                  end = std::min((group + 1) * size, columns.end);
    f(group - groups.begin, begin - columns.begin, end - begin);
  }
}

/// Returns the smallest fp16 number that is not below `x`.
float rounded_up(float x) {
  c10::Half half(x);
  if (static_cast<float>(half) < x) ++half.x;
  return static_cast<float>(half);
}

float scale_of(float maximum, const Format& format) {
  return rounded_up(maximum / static_cast<float>(format.largest_level()));
}

/// Packs a value into bits that are zero so far.
void pack_(uint32_t* words, int64_t index, int64_t bits, uint32_t value) {
  const int64_t per_word = 32 / bits;
  words[index / per_word] |= value << (index % per_word * bits);
}

void quantize_group_(uint32_t* words, int64_t index, const float* w, int64_t count, float scale,
                     const Format& format) {
  const auto zero_point = static_cast<float>(format.symmetric_zero_point());
  for (int64_t j = 0; j < count; ++j) {
    const float level = scale > 0 ? std::nearbyint(w[j] / scale) : 0;
    pack_(words, index + j, format.bits, static_cast<uint32_t>(level + zero_point));
  }
}

}  // namespace

Tensor group_maxima(const Tensor& w, const Format& format, int64_t in_features, const Range& columns) {
  kernels::check_on_cpu("group_maxima", w);
  const int64_t groups = format.groups_of(columns, in_features).size();
  const Tensor maxima = at::empty({w.size(0), groups}, at::kFloat);
  kernels::for_ranges(w.size(0), columns.size(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* values = elements<float>(w) + row * columns.size();
      float* largest = elements_<float>(maxima) + row * groups;
      for_each_group(format, in_features, columns, [&](int64_t group, int64_t first, int64_t count) {
        float max = 0;
        for (int64_t j = first; j < first + count; ++j) {
          const float magnitude = std::abs(values[j]);
          max = magnitude > max || magnitude != magnitude ? magnitude : max;
          if (max != max) break;  // NaN
        }
        largest[group] = max;
      });
    }
  });
  return maxima;
}

float max_magnitude(const Format& format) {
  return kLargestScale * static_cast<float>(format.largest_level());
}

void check_maxima(const Tensor& maxima, const Format& format, const std::string& name) {
  const float most = max_magnitude(format);
  const auto* values = elements<float>(maxima);
  for (int64_t i = 0; i < maxima.numel(); ++i) {
    TORCH_CHECK_VALUE(values[i] <= most, name, ": must have magnitudes of at most ", most,
                      " to be quantized, so that the scales fit fp16; got ", values[i], " [SW0239]");
  }
}

void quantize_rows_(Matrix& matrix, int64_t begin, const Tensor& w, const Tensor& maxima) {
  const auto& [format, in_features, columns, qweight, scales, zero_points, group_index] = matrix;
  const int64_t words = qweight.size(1), groups = scales.size(1), width = columns.size();
  const int64_t first_value = columns.begin - matrix.words().begin * format.values_per_word();
  check_on_cpu("quantize", matrix);
  kernels::check_on_cpu("quantize", w);
  kernels::check_on_cpu("quantize", maxima);
  kernels::check_tensor("quantize", "w", w, {w.size(0), width}, at::kFloat);
  kernels::check_tensor("quantize", "maxima", maxima, {w.size(0), groups}, at::kFloat);
  kernels::for_ranges(w.size(0), width, [&](int64_t first_row, int64_t last_row) {
    for (int64_t row = first_row; row < last_row; ++row) {
      auto* row_words = elements_<uint32_t>(qweight) + (begin + row) * words;
      std::fill_n(row_words, words, 0);
      std::fill_n(elements_<uint8_t>(zero_points) + (begin + row) * groups, groups,
                  format.symmetric_zero_point());
      const float* values = elements<float>(w) + row * width;
      for_each_group(format, in_features, columns, [&](int64_t group, int64_t first, int64_t count) {
        const float scale = scale_of(elements<float>(maxima)[row * groups + group], format);
        elements_<float>(scales)[(begin + row) * groups + group] = scale;
        quantize_group_(row_words, first_value + first, values + first, count, scale, format);
      });
    }
  });
}

}  // namespace shardwise::quant
