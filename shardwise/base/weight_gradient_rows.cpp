#include "shardwise/base/weight_gradient_rows.h"

#include <algorithm>

namespace shardwise::base {

Range indices_of(const Split& sequence, const Range& ranks) {
  return {sequence.range(static_cast<int>(ranks.begin)).begin,
          sequence.range(static_cast<int>(ranks.end) - 1).end};
}

std::vector<Range> weight_gradient_ranks(const Split& sequence, int64_t batch) {
  const auto has_enough = [&](const Range& ranks) {
    return indices_of(sequence, ranks).size() * batch >= kWeightGradientRows;
  };
  std::vector<Range> runs;
  Range run{0, 0};
  while (run.end < sequence.ranks()) {
    ++run.end;
    if (!has_enough(run)) continue;
    runs.push_back(run);
    run.begin = run.end;
  }
  if (run.empty()) return runs;
  if (runs.empty()) return {run};
  runs.back().end = run.end;
  return runs;
}

int64_t largest_weight_gradient_rows(const Split& sequence, int64_t batch) {
  int64_t rows = 0;
  for (const Range& ranks : weight_gradient_ranks(sequence, batch))
    rows = std::max(rows, indices_of(sequence, ranks).size() * batch);
  return rows;
}

}  // namespace shardwise::base
