// check, load_weights, map_weights and load_state. Each rank validates the headers, then reads its shards;
// the ranks combine errors in the data, so that all of them throw.
#include <algorithm>
#include <unordered_set>

#include "shardwise/base/clock.h"
#include "shardwise/base/json.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/load_quantized.h"
#include "shardwise/checkpoint/map_rows.h"
#include "shardwise/checkpoint/panel_files.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/config/family.h"

namespace shardwise::checkpoint {
namespace {

/// Returns whether a tensor is redundant: one that older exporters of the family wrote, or the copy of the
/// embedding for a tied lm_head.
bool is_redundant(const std::string& name, const config::Config& config) {
  const auto& suffixes = config::family_of(config.model_type).redundant_suffixes;
  const std::string path = "." + name;  // a name without prefix may be all of a suffix
  const bool is_listed = std::any_of(suffixes.begin(), suffixes.end(),
                                     [&](const std::string& suffix) { return path.ends_with(suffix); });
  return is_listed || (config.tie_word_embeddings && name == "lm_head.weight");
}

/// Older GPTQ exporters wrote a zero bias for every module whose model has no bias.
bool is_zero_bias(const WeightFiles& files, const std::string& name,
                  const std::unordered_set<std::string>& known) {
  const std::string end = ".bias";
  if (!name.ends_with(end) || !known.count(name.substr(0, name.size() - end.size()) + ".qweight"))
    return false;
  const auto outputs = files.find(name.substr(0, name.size() - end.size()) + ".scales").shape.back();
  if (files.find(name).shape != std::vector<int64_t>{outputs}) return false;
  const TensorSource bias = files.full_source(name);
  std::string bytes(bias.tensor->bytes(), '\0');
  bias.file->read_tensor(*bias.tensor, bytes.data());
  return std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
}

/// Checks that the files contain no unexpected tensor, which would mean that config.json is another model's.
void check_no_unexpected(const WeightFiles& files, const std::vector<model::StoredTensor>& expected,
                         const config::Config& config) {
  std::unordered_set<std::string> known;
  for (const model::StoredTensor& weight : expected) known.insert(name_in(files, weight.name, config));
  for (const std::string& name : files.names()) {
    const bool is_known = known.count(name) || is_redundant(name, config) || is_zero_bias(files, name, known);
    TORCH_CHECK_VALUE(is_known, files.find(name).path, ": must contain only tensors of the model in ",
                      kConfigFile, "; got ", base::shown(name), " [SW0233]");
  }
}

/// Checks the optimizer file. It has fp32 master weights for all weights narrower than that.
void check_state(const std::filesystem::path& directory, const config::Config& config,
                 const std::vector<model::StoredTensor>& expected, const std::set<std::string>& frozen) {
  const io::SafetensorsFile file = open_state(directory);
  const bool has_masters = config::element_bytes(config) < 4;
  for (const model::StoredTensor& weight : expected) {
    if (frozen.contains(weight.name)) continue;
    if (has_masters) find_state(file, weight.name + kMaster, weight.shape);
    find_state(file, weight.name + kExpAvg, weight.shape);
    find_state(file, weight.name + kExpAvgSq, weight.shape);
  }
  for (const ProgressNumber& number : kProgress) read_progress(file, number.name);
}

/// Checks that the file has master weights exactly if the run has: dropping them would lose precision.
void check_same_masters(const io::SafetensorsFile& file, const TrainState& state,
                        const config::Config& config) {
  if (state.tensors.empty()) return;
  const parallel::Parameter& first = *state.tensors.front().parameter;
  const std::string name = model::stored_tensors(first, config).front().name + kMaster;
  const bool has_masters =
      std::ranges::any_of(state.tensors, [](const StateTensor& tensor) { return tensor.suffix == kMaster; });
  TORCH_CHECK_VALUE(file.contains(name) == has_masters, file.path(),
                    ": must be resumed in the dtype in which it was saved; got ", first.value.scalar_type(),
                    file.contains(name) ? " but" : " and no", " fp32 master weights [SW0231]");
}

void load_dense(const WeightFiles& files, const parallel::Parameter& parameter, const config::Config& config,
                int rank, ValidationErrors& errors) {
  for (Entry& entry :
       entries_of(parameter, config, /*suffix=*/"", parameter.value.detach(), {0, parameter.size(0)})) {
    entry.name = name_in(files, entry.name, config);
    check_weight(files, entry.name, entry.stored.shape, entry.stored.element_type);
    read_entry(entry, files.parts(entry.name, entry.stored.dim), rank, errors);
  }
}

}  // namespace

void check_weights(const WeightFiles& files, const config::Config& config) {
  const std::vector<model::StoredTensor> expected = model::stored_tensors(config, /*tp=*/1);
  for (const model::StoredTensor& weight : expected) {
    check_weight(files, name_in(files, weight.name, config), weight.shape, weight.element_type);
  }
  check_no_unexpected(files, expected, config);
}

void check(const std::filesystem::path& directory, bool needs_state, const std::set<std::string>& frozen) {
  const config::Config config = config::load_config(directory);
  check_weights(WeightFiles(directory, config), config);
  if (needs_state) check_state(directory, config, model::stored_tensors(config, /*tp=*/1), frozen);
}

namespace {

/// `mapper` maps the weights that it can; null: all are read.
LoadStats load(const std::filesystem::path& directory, const model::DecoderWeights& weights,
               RowMapper* mapper, const model::OnParameter& loaded = {}) {
  if (has_panel_files(directory)) return map_panel_files(directory, weights);
  const base::Stopwatch watch;
  const comm::Group& group = weights.group();
  const config::Config& config = weights.config();
  const bool quantizes_on_load = config.quantization && !config.quantization->is_packed();
  const config::Config stored = quantizes_on_load ? config::dense(config) : config;
  // A quantized model splits the ffn columns at group boundaries, so a rank may need another rank's file.
  const auto reader =
      quantizes_on_load ? std::nullopt : std::optional(WeightFiles::Reader{group.rank(), group.size()});
  const WeightFiles files(directory, stored, reader);
  ValidationErrors errors;
  for (const nn::UsedParameter& used : weights.held_parameters()) {
    if (used.parameter->is_quantized()) {
      load_quantized(files, *used.parameter, config, group, errors);
    } else if (used.parameter->panels) {
      if (mapper && mapper->map(files, *used.parameter, stored, group.rank(), errors)) continue;
      pack_on_load(files, *used.parameter, stored, group.rank(), errors);
    } else {
      load_dense(files, *used.parameter, stored, group.rank(), errors);
    }
    if (loaded) loaded(*used.parameter);
  }
  errors.raise_on_any_rank(group);
  return {files.bytes_read(), watch.seconds(), mapper ? mapper->mapped_bytes() : 0};
}

}  // namespace

LoadStats load_weights(const std::filesystem::path& directory, const model::DecoderWeights& weights) {
  return load(directory, weights, /*mapper=*/nullptr);
}

LoadStats load_weights(const std::filesystem::path& directory, const model::DecoderWeights& weights,
                       const model::OnParameter& loaded) {
  return load(directory, weights, /*mapper=*/nullptr, loaded);
}

LoadStats map_weights(const std::filesystem::path& directory, const model::DecoderWeights& weights) {
  RowMapper mapper;
  return load(directory, weights, &mapper);
}

LoadStats load_state(const std::filesystem::path& directory, TrainState& state,
                     const model::DecoderWeights& weights) {
  const base::Stopwatch watch;
  const io::SafetensorsFile file = open_state(directory);
  const config::Config& config = weights.config();
  check_same_masters(file, state, config);
  const int rank = weights.group().rank();
  ValidationErrors errors;
  for (const Entry& entry : state_entries(state.tensors, config)) {
    read_rows(entry, file, find_state(file, entry.name, entry.stored.shape), rank, errors);
  }
  errors.raise_on_any_rank(weights.group());
  for (const auto& [name, value] : kProgress) state.*value = read_progress(file, name);
  return {file.bytes_read(), watch.seconds()};
}

}  // namespace shardwise::checkpoint
