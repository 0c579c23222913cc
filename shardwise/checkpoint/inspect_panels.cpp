#include "shardwise/checkpoint/inspect_panels.h"

#include <map>
#include <string_view>

#include "shardwise/checkpoint/panel_tensors.h"
#include "shardwise/io/safetensors.h"

namespace shardwise::checkpoint {
namespace {

/// Returns the parameter that a tensor of a panel file belongs to.
std::string parameter_of(const std::string& tensor) {
  for (const std::string_view suffix : {kPanels, kLayout, kColumnOrder})
    if (tensor.ends_with(suffix)) return tensor.substr(0, tensor.size() - suffix.size());
  return tensor;
}

}  // namespace

PanelInspection inspect_panels(const std::filesystem::path& directory) {
  const PanelOptions options = read_panel_index(directory);
  const config::Config config = config::load_config(directory);
  PanelInspection all{config, options, config::parameter_count(config), {}, {}, 0};
  std::map<std::string, InspectedPanelTensor> by_name;
  for (int64_t rank = 0; rank < options.tp; ++rank) {  // the index may name more ranks than there are files
    const io::SafetensorsFile file(directory / panel_file_name(rank, options.tp));
    all.rank_bytes.push_back(0);
    for (const io::TensorInfo& info : file.tensors()) {
      const std::string name = parameter_of(info.name);
      const InspectedPanelTensor empty{name, name != info.name, info.dtype, {}};
      std::vector<int64_t>& bytes = by_name.try_emplace(name, empty).first->second.rank_bytes;
      bytes.resize(all.rank_bytes.size());
      bytes.back() += info.bytes();
      all.rank_bytes.back() += info.bytes();
    }
    all.bytes_read += file.bytes_read();
  }
  for (auto& [name, tensor] : by_name) {
    tensor.rank_bytes.resize(all.rank_bytes.size());
    all.tensors.push_back(std::move(tensor));
  }
  return all;
}

}  // namespace shardwise::checkpoint
