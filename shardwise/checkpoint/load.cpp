// check, load_weights, load_state: what can be wrong is said once, by the headers; then each rank reads its
// own bytes, and what is wrong with the numbers in them is said by all together.
#include <algorithm>
#include <unordered_set>

#include "shardwise/base/clock.h"
#include "shardwise/base/mutation.h"
#include "shardwise/checkpoint/agreement.h"
#include "shardwise/checkpoint/quantized_weight.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/model/config_tensors.h"
#include "shardwise/model/family.h"

namespace shardwise::checkpoint {
namespace {

/// Tensors that older exporters wrote beside the weights and that carry nothing of their own: those that the
/// family lists, and a tied head's copy of the embedding.
bool is_redundant(const std::string& name, const model::Config& config) {
  const auto& ends = model::family_of(config.model_type).redundant;
  const bool is_listed =
      std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return name.ends_with(end); });
  return is_listed || (config.tie_word_embeddings && name == "lm_head.weight");
}

/// Older exporters of GPTQ gave every module a bias, of zeros where the model has none.
bool is_bias_of_zeros(const WeightFiles& files, const std::string& name,
                      const std::unordered_set<std::string>& known) {
  const std::string end = ".bias";
  if (!name.ends_with(end) || !known.count(name.substr(0, name.size() - end.size()) + ".qweight"))
    return false;
  const auto outputs = files.find(name.substr(0, name.size() - end.size()) + ".scales").shape.back();
  if (files.find(name).shape != std::vector<int64_t>{outputs}) return false;
  const Source bias = files.whole_source(name);
  std::string bytes(bias.tensor->bytes(), '\0');
  bias.file->read_whole(*bias.tensor, bytes.data());
  return std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
}

/// A weight that the config has no place for means another model than the one trained.
void check_no_others(const WeightFiles& files, const std::vector<model::WholeTensor>& expected,
                     const model::Config& config) {
  std::unordered_set<std::string> known;
  for (const model::WholeTensor& weight : expected) known.insert(name_in(files, weight.name, config));
  for (const std::string& name : files.names()) {
    const bool is_known =
        known.count(name) || is_redundant(name, config) || is_bias_of_zeros(files, name, known);
    TORCH_CHECK_VALUE(is_known, files.find(name).path, ": must hold only tensors that ", kConfigFile,
                      " has a place for; got ", name);
  }
}

/// Masters are there for all weights or for none, which reads as the model's dtype.
void check_state(const std::filesystem::path& directory, const model::Config& config,
                 const std::vector<model::WholeTensor>& expected, const std::set<std::string>& frozen) {
  const io::SafetensorsFile file = open_state(directory);
  const bool has_masters = config.dtype != "float32";
  for (const model::WholeTensor& weight : expected) {
    if (frozen.contains(weight.name)) continue;
    if (has_masters) find_state(file, weight.name + kMaster, weight.shape);
    find_state(file, weight.name + kExpAvg, weight.shape);
    find_state(file, weight.name + kExpAvgSq, weight.shape);
  }
  for (const ProgressNumber& number : kProgress) read_progress(file, number.name);
}

/// A run that has masters goes on with them; one that has none cannot: they are the better weights.
void check_same_masters(const io::SafetensorsFile& file, const ParameterState& state,
                        const model::Config& config) {
  const std::string name = model::stored_tensors(*state.parameter, config).front().name + kMaster;
  TORCH_CHECK_VALUE(file.contains(name) == state.master.defined(), file.path(),
                    ": must be resumed in the dtype that it was saved in; got ",
                    state.parameter->value.scalar_type(), file.contains(name) ? " but" : " and no",
                    " fp32 masters");
}

void load_dense(const WeightFiles& files, const parallel::Parameter& parameter, const model::Config& config,
                int rank, ValidationErrors& mistakes) {
  for (Entry& entry : entries_of(parameter, config, /*what=*/"", parameter.value.detach())) {
    entry.name = name_in(files, entry.name, config);
    check_weight(files, entry.name, entry.stored.shape, entry.stored.holds);
    read_entry(entry, files.parts(entry.name, entry.stored.dim), rank, mistakes);
  }
}

}  // namespace

void check_weights(const WeightFiles& files, const model::Config& config) {
  const std::vector<model::WholeTensor> expected = model::stored_whole_tensors(config);
  for (const model::WholeTensor& weight : expected) {
    check_weight(files, name_in(files, weight.name, config), weight.shape, weight.holds);
  }
  check_no_others(files, expected, config);
}

void check(const std::filesystem::path& directory, bool needs_state, const std::set<std::string>& frozen) {
  const model::Config config = model::load_config(directory);
  check_weights(WeightFiles(directory, config), config);
  if (needs_state) check_state(directory, config, model::stored_whole_tensors(config), frozen);
}

Loaded load_weights(const std::filesystem::path& directory, const model::DecoderWeights& weights) {
  const base::Stopwatch watch;
  const comm::Group& group = weights.group();
  const model::Config& config = weights.config();
  const bool converts = config.quantization && !config.quantization->is_packed();
  const model::Config stored = converts ? model::dense(config) : config;
  // Quantized, the ffn columns are dealt in groups: what a rank needs may be in another rank's file.
  const auto reader =
      converts ? std::nullopt : std::optional(WeightFiles::Reader{group.rank(), group.size()});
  const WeightFiles files(directory, stored, reader);
  ValidationErrors mistakes;
  for (const nn::UsedParameter& role : weights.roles()) {
    if (role.parameter->quantized) {
      load_quantized(files, *role.parameter, config, group, mistakes);
    } else {
      load_dense(files, *role.parameter, stored, group.rank(), mistakes);
    }
  }
  mistakes.agree(group);
  return {files.bytes_read(), watch.seconds()};
}

Loaded load_state(const std::filesystem::path& directory, TrainState& state,
                  const model::DecoderWeights& weights) {
  const base::Stopwatch watch;
  const io::SafetensorsFile file = open_state(directory);
  const model::Config& config = weights.config();
  if (!state.parameters.empty()) check_same_masters(file, state.parameters.front(), config);
  const int rank = weights.group().rank();
  ValidationErrors mistakes;
  for (const Entry& entry : state_entries(state.parameters, config)) {
    if (base::mutated(base::Mutation::forget_moments)) break;
    const io::TensorInfo& tensor = find_state(file, entry.name, entry.stored.shape);
    read_entry(entry, {whole_part(file, tensor, entry.stored.dim)}, rank, mistakes);
  }
  mistakes.agree(weights.group());
  for (const auto& [name, value] : kProgress) state.*value = read_progress(file, name);
  state.sequences += base::mutated(base::Mutation::resume_off_by_one);
  return {file.bytes_read(), watch.seconds()};
}

}  // namespace shardwise::checkpoint
