// The format of a packed weight [out, in]: bf16, or quantized with value = (quantized − zero_point) · scale.
#pragma once
#include <cstdint>

#include "shardwise/base/split.h"

namespace shardwise::quant {

/// How columns are assigned to groups.
enum class Grouping {
  in_order,   // column j is in group j / group_size
  by_column,  // each column stores its group (GPTQ's act-order, g_idx): a rank may need any group
};

/// Bits and grouping of a packed weight.
struct Format {
  int64_t bits;            // per value: 4 or 8, or 16 for bf16, which has no groups
  int64_t group_size = 0;  // columns of the unsharded row that share a scale and a zero point; 0: all columns
  Grouping grouping = Grouping::in_order;  // how columns are assigned to groups
  bool has_zero_points = false;            // otherwise all are symmetric_zero_point()
  bool int8_activations = false;           // products round x to int8, with a scale per run of columns
  bool operator==(const Format&) const = default;

  /// Returns false for bf16.
  bool is_quantized() const { return bits < 16; }
  /// Returns how many values a packed 32-bit word holds.
  int64_t values_per_word() const { return 32 / bits; }
  /// Returns the number of different quantized values.
  int64_t levels() const { return int64_t{1} << bits; }
  /// Returns the zero point of symmetric quantization, whose range is −largest_level() to largest_level().
  int64_t symmetric_zero_point() const { return levels() / 2; }
  /// Returns the largest magnitude of symmetric quantization.
  int64_t largest_level() const { return symmetric_zero_point() - 1; }

  /// Returns the packed 32-bit words that contain these columns of an unsharded row.
  base::Range words_of(const base::Range& columns) const {
    return base::blocks_of(columns, values_per_word());
  }
  /// Returns the groups that a rank with these columns of a row of `in_features` stores.
  base::Range groups_of(const base::Range& columns, int64_t in_features) const {
    const base::Range needed = grouping == Grouping::by_column ? base::Range{0, in_features} : columns;
    return base::blocks_of(needed, group_size == 0 ? in_features : group_size);
  }
};

}  // namespace shardwise::quant
