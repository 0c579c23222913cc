#include "tests/fuzz/target.h"

#include <filesystem>
#include <fstream>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/io/slices.h"
#include "shardwise/model/names.h"

namespace shardwise::fuzz {
namespace {

int64_t bytes_of(const io::TensorInfo& tensor) {
  int64_t bytes = io::itemsize(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

/// Returns the offset of the data, computed independently of the reader.
int64_t end_of_header(const std::string& path) {
  uint64_t length = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&length), sizeof(length));
  return static_cast<int64_t>(sizeof(length) + length);
}

/// Checks that the tensors are contiguous from the header to the end of the file, each with the bytes of its
/// shape.
void check_places(const io::SafetensorsFile& file) {
  int64_t end = end_of_header(file.path());
  for (const io::TensorInfo& tensor : file.tensors()) {
    hold(tensor.begin == end, "a tensor begins at the end of the previous tensor");
    hold(tensor.bytes() == bytes_of(tensor), "a tensor has the bytes of its shape and dtype");
    end = tensor.end;
  }
  hold(end == static_cast<int64_t>(std::filesystem::file_size(file.path())),
       "the last tensor ends at the end of the file");
}

/// Reads every tensor completely, and again in two halves of its first dim.
void read_tensors(const io::SafetensorsFile& file) {
  check_places(file);
  for (const io::TensorInfo& tensor : file.tensors()) {
    std::string full(tensor.bytes(), '\0');
    file.read_tensor(tensor, full.data());
    hold(file.find(tensor.name) == tensor, "a tensor is found by its name");
    if (tensor.shape.empty()) continue;
    const base::Split halves = base::Split::even("rows", tensor.shape[0], 2);
    std::string joined;
    for (const int rank : {0, 1}) {
      const base::Range rows = halves.range(rank);
      std::string half(tensor.shape[0] == 0 ? 0 : tensor.bytes() / tensor.shape[0] * rows.size(), '\0');
      io::read_block(file, io::block_of(tensor, /*dim=*/0, {0, tensor.shape[0]}, rows), half.data());
      joined += half;
    }
    hold(joined == full, "the halves equal the full tensor");
  }
}

void read_directory(const std::string& path) {
  const io::SafetensorsDirectory directory(std::filesystem::path(path).parent_path());
  for (const std::string& name : directory.names()) {
    const auto [file, tensor] = directory.find(name);
    hold(file->find(name) == *tensor, "the index finds the file's tensors");
  }
}

/// The config of the model from which the seeds of shard_index were sharded.
const std::string kShardedConfig =
    R"({"model_type": "llama", "vocab_size": 259, "hidden_size": 12, "intermediate_size": 10,
        "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})";

/// Checks that reading all files, and reading one rank's file, gives every weight completely.
void read_shards(const std::string& path) {
  const config::Config config = config::parse_config(kShardedConfig, "the seeds' config");
  const auto directory = std::filesystem::path(path).parent_path();
  const checkpoint::WeightFiles files(directory, config);
  checkpoint::check_weights(files, config);
  for (const model::StoredTensor& weight : model::stored_tensors(config, /*tp=*/1)) {
    int64_t size = 0;
    const auto known = checkpoint::known_tensors(files, config, files.tp());
    const int64_t dim = known.at(weight.name).dim;
    for (const checkpoint::TensorSource& part : files.parts(weight.name, dim)) size += part.size;
    hold(size == weight.shape.at(dim), "the shards of a tensor cover it");
  }
}

}  // namespace

std::vector<Target> tensor_targets() {
  return {{"safetensors", "model.safetensors", &Mutator::safetensors,
           [](const std::string& path) { read_tensors(io::SafetensorsFile(path)); }},
          {"index", "model.safetensors.index.json", &Mutator::json, read_directory},
          {"shard_index", checkpoint::kShardIndex, &Mutator::json, read_shards}};
}

}  // namespace shardwise::fuzz
