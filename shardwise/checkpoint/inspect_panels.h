// Lists the parameters in a directory of panel files (panel_files.h), from its index and the headers alone.
#pragma once
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "shardwise/checkpoint/panel_index.h"
#include "shardwise/config/config.h"
#include "shardwise/io/dtype.h"

namespace shardwise::checkpoint {

struct InspectedPanelTensor {
  std::string name;  // of the parameter
  bool is_packed;
  io::Dtype dtype;                  // unless it is packed
  std::vector<int64_t> rank_bytes;  // in each rank's file; of a packed one with its layout and column order
};

struct PanelInspection {
  config::Config config;
  PanelOptions options;
  int64_t parameters;  // of the model, counting a tied lm_head once
  std::vector<InspectedPanelTensor> tensors;
  std::vector<int64_t> rank_bytes;  // of each rank's file without its header
  int64_t bytes_read = 0;           // headers

  int64_t bytes() const { return std::accumulate(rank_bytes.begin(), rank_bytes.end(), int64_t{0}); }
};

/// Errors: c10::ValueError naming file and rule if the index or a header is damaged.
PanelInspection inspect_panels(const std::filesystem::path& directory);

}  // namespace shardwise::checkpoint
