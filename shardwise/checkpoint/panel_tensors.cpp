#include "shardwise/checkpoint/panel_tensors.h"

namespace shardwise::checkpoint {

std::vector<int32_t> lines_of_groups(const kernels::PanelLayout& layout) {
  const kernels::PanelShape shape = layout.shape();
  std::vector<int32_t> lines;
  for (int64_t i = 0; i < shape.run_count; ++i) {
    const bool is_new_group = i == 0 || shape.runs[i].header != shape.runs[i - 1].header;
    if (is_new_group) lines.push_back(0);
    lines.back() += static_cast<int32_t>(shape.runs[i].lines);
  }
  return lines;
}

}  // namespace shardwise::checkpoint
