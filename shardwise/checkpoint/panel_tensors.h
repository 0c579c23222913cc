// The tensors of a packed weight in a panel file (panel_files.h).
#pragma once
#include <cstdint>
#include <vector>

#include "shardwise/kernels/panels.h"

namespace shardwise::checkpoint {

/// Suffixes of a weight's name.
inline constexpr const char* kPanels = ".panels";
inline constexpr const char* kLayout = ".layout";
inline constexpr const char* kColumnOrder = ".column_order";

/// Panels are stored as words, the widest elements there are: plan_file puts them before all other tensors.
inline constexpr int64_t kPanelWordBytes = 8;
/// Where panels begin in a file, so that they are whole cache lines; a panel's bytes are a multiple of it.
inline constexpr int64_t kPanelAlignment = 64;

/// Returns the lines of each group of columns.
std::vector<int32_t> lines_of_groups(const kernels::PanelLayout& layout);

}  // namespace shardwise::checkpoint
