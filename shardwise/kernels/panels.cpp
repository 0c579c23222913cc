#include "shardwise/kernels/panels.h"

#include <algorithm>

namespace shardwise::kernels {
namespace {

/// Columns that are summed in integers before they are scaled: few enough for exact sums in 32 bits, and for
/// a run of 64 outputs to stay in the first-level cache.
constexpr int64_t kRunColumns = 128;

}  // namespace

PanelLayout::PanelLayout(int64_t bits, bool has_zero_points, const std::vector<int64_t>& group_columns)
    : bits_(bits), has_zero_points_(has_zero_points) {
  const int64_t per_line = 32 / bits, most_lines = kRunColumns / per_line;
  for (const int64_t columns : group_columns) {
    const int64_t header = panel_bytes_;
    int64_t lines = (columns + per_line - 1) / per_line;
    lines_ += lines;
    panel_bytes_ += shape().header_bytes();
    while (lines > 0) {
      const int64_t some = std::min(lines, most_lines);
      runs_.push_back({header, panel_bytes_, some});
      panel_bytes_ += some * kPanelLineBytes;
      lines -= some;
    }
  }
}

}  // namespace shardwise::kernels
