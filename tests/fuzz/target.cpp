#include "tests/fuzz/target.h"

#include <cmath>
#include <filesystem>
#include <stdexcept>

#include "shardwise/io/slices.h"
#include "shardwise/model/config.h"

namespace shardwise::fuzz {
namespace {

constexpr int64_t kLargestHead = 1 << 16;  // a valid config may ask for 2^30 frequencies

void hold(bool is_met, const std::string& what) {
  if (!is_met) throw std::logic_error("took an input of which it must hold that " + what);
}

void read_config(const std::string& path) {
  const model::Config config = model::load_config(path);
  hold(model::parse_config(model::to_json(config), "written") == config, "it is read as it was written");
  hold(config.num_attention_heads % config.num_key_value_heads == 0, "KV heads divide query heads");
  hold(model::parameter_count(config) > 0, "it has parameters");
  if (config.head_dim > kLargestHead) return;
  for (const double frequency : model::inverse_frequencies(config)) {
    hold(std::isfinite(frequency) && frequency >= 0, "rotary frequencies are finite");
  }
}

/// Every tensor is read whole, and again in the two halves of its first dim.
void read_tensors(const io::SafetensorsFile& file) {
  int64_t bytes = 0;
  for (const io::TensorInfo& tensor : file.tensors()) {
    std::string whole(tensor.bytes(), '\0');
    file.read_whole(tensor, whole.data());
    bytes += tensor.bytes();
    hold(file.find(tensor.name) == tensor, "a tensor is found by its name");
    if (tensor.shape.empty()) continue;
    const auto halves = base::ShardRule::cut(0, base::Split::even("rows", tensor.shape[0], 2));
    std::string joined;
    for (const int rank : {0, 1}) {
      const int64_t rows = halves.local_size(rank);
      std::string half(tensor.shape[0] == 0 ? 0 : tensor.bytes() / tensor.shape[0] * rows, '\0');
      io::read_shard(file, tensor, halves, rank, half.data());
      joined += half;
    }
    hold(joined == whole, "its halves are the whole");
  }
  hold(bytes <= static_cast<int64_t>(std::filesystem::file_size(file.path())), "its tensors lie in the file");
}

void read_folder(const std::string& path) {
  const io::SafetensorsFolder folder(std::filesystem::path(path).parent_path());
  for (const std::string& name : folder.names()) {
    const auto [file, tensor] = folder.find(name);
    hold(file->find(name) == *tensor, "the index finds what the file has");
  }
}

}  // namespace

std::vector<Target> targets() {
  return {{"config", "config.json", &Mutator::json, read_config},
          {"safetensors", "model.safetensors", &Mutator::safetensors,
           [](const std::string& path) { read_tensors(io::SafetensorsFile(path)); }},
          {"index", "model.safetensors.index.json", &Mutator::json, read_folder}};
}

}  // namespace shardwise::fuzz
