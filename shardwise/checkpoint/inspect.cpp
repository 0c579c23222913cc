#include "shardwise/checkpoint/inspect.h"

#include <functional>
#include <numeric>

#include "shardwise/checkpoint/reader.h"

namespace shardwise::checkpoint {
namespace {

using model::StoredTensor;

int64_t bytes_of(const std::vector<int64_t>& shape, io::Dtype dtype) {
  return std::accumulate(shape.begin(), shape.end(), io::itemsize(dtype), std::multiplies<>());
}

/// Sets the rule and shapes of a tensor that the model reads.
void describe(InspectedTensor& tensor, const StoredTensor& stored, int tp) {
  tensor.rule = model::rule_text(stored);
  for (int rank = 0; rank < tp; ++rank) tensor.rank_shapes.push_back(stored.held_shape(rank));
}

}  // namespace

Inspection inspect(const std::filesystem::path& directory, int tp) {
  const config::Config config = config::load_config(directory);
  const WeightFiles files(directory, config);
  check_weights(files, config);
  const auto known = known_tensors(files, config, tp);
  Inspection all{config, config::parameter_count(config), {}, 0, std::vector<int64_t>(tp), 0};
  for (const std::string& name : files.names()) {
    const auto info = files.find(name);
    InspectedTensor tensor{name, info.dtype, info.shape, "not read", {}};
    if (const auto stored = known.find(name); stored != known.end()) {
      describe(tensor, stored->second, tp);
      all.bytes += bytes_of(info.shape, info.dtype);
    }
    for (size_t rank = 0; rank < tensor.rank_shapes.size(); ++rank) {
      all.rank_bytes[rank] += bytes_of(tensor.rank_shapes[rank], info.dtype);
    }
    all.tensors.push_back(std::move(tensor));
  }
  all.bytes_read = files.bytes_read();
  return all;
}

}  // namespace shardwise::checkpoint
