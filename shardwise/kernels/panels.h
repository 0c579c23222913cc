// Builds the layout of packed weights (panel_shape.h).
#pragma once
#include <vector>

#include "shardwise/kernels/panel_shape.h"

namespace shardwise::kernels {

/// The layout of a weight's panels.
class PanelLayout {
 public:
  /// Lays out groups of `group_columns` columns each, in order.
  PanelLayout(int64_t bits, bool has_zero_points, const std::vector<int64_t>& group_columns);

  /// Returns the layout in the form that kernels take; valid as long as this object.
  PanelShape shape() const { return {runs_.data(), std::ssize(runs_), bits_, has_zero_points_}; }
  /// Returns the bytes of one panel, a multiple of 64.
  int64_t panel_bytes() const { return panel_bytes_; }
  /// Returns the number of columns, including the padding of groups to full lines.
  int64_t columns() const { return lines_ * (32 / bits_); }
  /// Returns the number of lines of 256 bytes.
  int64_t lines() const { return lines_; }

  /// Returns the number of panels of a weight with `outputs` outputs.
  static int64_t panels(int64_t outputs) { return (outputs + kPanelOutputs - 1) / kPanelOutputs; }

 private:
  int64_t bits_;
  bool has_zero_points_;
  std::vector<PanelRun> runs_;
  int64_t lines_ = 0, panel_bytes_ = 0;
};

}  // namespace shardwise::kernels
