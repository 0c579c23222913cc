// How the numbers of a weight [out, in] are coded: value = (code − zero) · scale.
#pragma once
#include <cstdint>

#include "shardwise/base/split.h"

namespace shardwise::quant {

/// Where the group of a column is said.
enum class Grouping {
  in_order,   // column j is in group j / group_size
  by_column,  // by a list (GPTQ's act-order): a rank may need any group
};

struct Format {
  int64_t bits;            // of a code: 4 or 8
  int64_t group_size = 0;  // columns of the whole row that share a scale and a zero; 0: all of them
  Grouping grouping = Grouping::in_order;
  bool operator==(const Format&) const = default;

  int64_t codes_per_word() const { return 32 / bits; }
  int64_t code_limit() const { return int64_t{1} << bits; }
  /// The zero of symmetric codes, which stand for −largest_step() to largest_step() steps.
  int64_t symmetric_zero() const { return code_limit() / 2; }
  int64_t largest_step() const { return symmetric_zero() - 1; }

  /// The words that hold the codes of these columns of a whole row.
  base::Range words_of(const base::Range& columns) const {
    return base::blocks_of(columns, codes_per_word());
  }
  /// The groups that a rank with these columns of a row of `in_features` keeps.
  base::Range groups_of(const base::Range& columns, int64_t in_features) const {
    const base::Range needed = grouping == Grouping::by_column ? base::Range{0, in_features} : columns;
    return base::blocks_of(needed, group_size == 0 ? in_features : group_size);
  }
};

}  // namespace shardwise::quant
