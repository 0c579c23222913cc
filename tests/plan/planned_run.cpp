#include "tests/plan/planned_run.h"

#include <algorithm>

#include "shardwise/config/parameters.h"
#include "tests/support/covering.h"
#include "tests/support/extent.h"

namespace shardwise::plan {

using testing::Combination;
using testing::Path;
using testing::Space;

namespace {

/// A small model of a family, as from its config.json.
struct Kind {
  const char* name;
  const char* model_type;
  int64_t query, kv;
  void (*set)(config::Config&);
};

void set_biases(config::Config& config) {
  config.qkv_bias = config.attention_out_bias = config.mlp_bias = true;
}
void make_gpt2(config::Config& config) {
  set_biases(config);
  config.norm = config::Norm::layer;
  config.activation = config::Activation::gelu_tanh;
  config.positions = config::Positions::learned;
  config.tie_word_embeddings = true;
}
/// From three ranks on, some ranks have empty shards of the MLP and the vocabulary. There are at least as
/// many heads as ranks.
void leave_shards_empty(config::Config& config) {
  config.intermediate_size = config.vocab_size = 2;
}

const Kind kKinds[] = {
    {"Llama, 5 over 1 heads, biases", "llama", 5, 1, set_biases},
    {"Llama, 4 heads, empty shards", "llama", 4, 4, leave_shards_empty},
    {"Mistral, 8 over 4 heads", "mistral", 8, 4, [](config::Config& config) { config.sliding_window = 3; }},
    {"Qwen 2, 6 over 3 heads", "qwen2", 6, 3,
     [](config::Config& config) {
       config.qkv_bias = true;
       config.sliding_window = 3;
       config.sliding_layers = {false, true};
     }},
    {"Qwen 3, 4 over 2 heads", "qwen3", 4, 2, [](config::Config& config) { config.qk_norm = true; }},
    {"Phi-3, 4 heads", "phi3", 4, 4,
     [](config::Config& config) {
       config.partial_rotary_factor = 0.7;  // 4 elements of 6
       config.sliding_window = 3;
     }},
    {"GPT-2, 4 heads", "gpt2", 4, 4, make_gpt2},
    {"GPT-2, 4 heads, empty shards", "gpt2", 4, 4,
     [](config::Config& config) {
       make_gpt2(config);
       leave_shards_empty(config);
     }},
};

struct Micro {
  const char* name;
  int64_t sequence, element_bytes;  // a sequence of 0 means one position less than the number of ranks
  StepOptions options;
};
const Micro kMicros[] = {
    {"fp32, dropout", 7, 4, {.dropout = 0.1, .label_smoothing = 0.1}},
    {"bf16", 7, 2, {}},
    {"fp64, short", 0, 8, {}},
    {"fp32, padded",
     7,
     4,
     {.attention_dropout = 0.2, .label_smoothing = 0.1, .z_loss = 0.01, .is_padded = true}}};

struct NamedParallelism {
  const char* name;
  Parallelism value;
};
const NamedParallelism kParallelisms[] = {{"TP", Parallelism::tp}, {"TP+SP", Parallelism::tp_sp}};

struct NamedGathered {
  const char* name;
  ColumnInputStorage value;
};
const NamedGathered kGathered[] = {{"in place", ColumnInputStorage::shard_in_place},
                                   {"gathered", ColumnInputStorage::gathered},
                                   {"gathered again", ColumnInputStorage::shard}};

struct NamedRecompute {
  const char* name;
  Recompute value;
};
const NamedRecompute kRecompute[] = {
    {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}};

bool has(const std::string& name, const std::string& part) {
  return name.find(part) != std::string::npos;
}
bool is_in_layer(const std::string& name, int64_t layer) {
  return has(name, ".layers." + std::to_string(layer) + ".");
}

using Name = const std::string&;
using Config = const config::Config&;

const FrozenSubset kSubsets[] = {
    {"embedding and block 0", [](Name name, Config) { return has(name, "embed") || is_in_layer(name, 0); }},
    {"all but the norms", [](Name name, Config) { return !has(name, "norm"); }},
    {"all but the biases", [](Name name, Config) { return !name.ends_with(".bias"); }},
    {"all but the row biases",
     [](Name name, Config) { return !has(name, "o_proj.bias") && !has(name, "down_proj.bias"); }},
    {"all but the first MLP biases", [](Name name, Config) { return !has(name, "up_proj.bias"); }},
    {"all but the first MLP biases and the down projections",
     [](Name name, Config) { return !has(name, "up_proj.bias") && !has(name, "down_proj.weight"); }},
    {"all but the row weights",
     [](Name name, Config) { return !has(name, "o_proj.weight") && !has(name, "down_proj.weight"); }},
    {"all but the head", [](Name name, Config) { return !has(name, "lm_head"); }},
    {"all but the last norm", [](Name name, Config) { return !name.starts_with("model.norm."); }},
    {"all but the last block",
     [](Name name, Config config) { return !is_in_layer(name, config.num_hidden_layers - 1); }},
    {"all but the last down projection",
     [](Name name, Config config) {
       return !has(name, "down_proj") || !is_in_layer(name, config.num_hidden_layers - 1);
     }},
    {"all but the embedding", [](Name name, Config) { return !has(name, "embed_tokens"); }},
    {"all but the positions", [](Name name, Config) { return !has(name, "embed_positions"); }},
    {"all but q/k norm", [](Name name, Config) { return !has(name, ".q_norm.") && !has(name, ".k_norm."); }},
    {"qkv and down below, the rest above",
     [](Name name, Config) {
       const bool is_outer = has(name, "qkv_proj") || has(name, "down_proj");
       const bool is_inner = has(name, "o_proj") || has(name, "up_proj");
       return is_in_layer(name, 0) ? is_outer : is_inner;
     }},
};

config::Config config_of(const Kind& kind) {
  config::Config config;
  config.model_type = kind.model_type;
  config.vocab_size = 17;
  config.hidden_size = 10;
  config.intermediate_size = 13;
  config.num_hidden_layers = 2;
  config.num_attention_heads = kind.query;
  config.num_key_value_heads = kind.kv;
  config.head_dim = 6;
  config.max_position_embeddings = 16;
  kind.set(config);
  return config;
}

/// Returns true if a one-layer model also has trainable parameters left.
bool leaves_something(const FrozenSubset& subset, config::Config config) {
  config.num_hidden_layers = 1;
  const config::ParameterTable table(config);
  return std::ranges::any_of(table,
                             [&](const auto& parameter) { return !subset.has(parameter.name, config); });
}

constexpr const char* kNothing = "nothing";

template <class Named>
std::vector<std::string> names_of(const Named& named) {
  std::vector<std::string> names;
  for (const auto& one : named) names.emplace_back(one.name);
  return names;
}

/// The dimensions, in the order of run_space.
constexpr int kModel = 0, kStream = 1, kGather = 2, kMode = 3, kMicro = 4, kFrozen = 5;

Space run_space() {
  std::vector<std::string> subsets = names_of(kSubsets);
  subsets.insert(subsets.begin(), kNothing);
  Space space;
  space.add("model", names_of(kKinds));
  space.add("stream", names_of(kParallelisms));
  space.add("gathered", names_of(kGathered));
  space.add("recompute", names_of(kRecompute));
  space.add("micro-batch", names_of(kMicros));
  space.add("frozen", subsets);
  for (const Kind& kind : kKinds) {
    for (const FrozenSubset& subset : kSubsets) {
      if (!leaves_something(subset, config_of(kind)))
        space.exclude({"model", kind.name}, {"frozen", subset.name});
    }
  }
  return space;
}

PlannedRun run_of(int ranks, const Combination& combination) {
  const Kind& kind = kKinds[combination[kModel]];
  const Micro& micro = kMicros[combination[kMicro]];
  PlannedRun run;
  run.kind = kind.name;
  run.micro = micro.name;
  run.options = micro.options;
  if (combination[kFrozen] > 0) run.frozen = &kSubsets[combination[kFrozen] - 1];
  run.workload = {.config = config_of(kind),
                  .tp = ranks,
                  .parallelism = kParallelisms[combination[kStream]].value,
                  .sequence_length = micro.sequence > 0 ? micro.sequence : std::max(1, ranks - 1),
                  .batch_size = 2,
                  .element_bytes = micro.element_bytes,
                  .column_input_storage = kGathered[combination[kGather]].value,
                  .recompute = kRecompute[combination[kMode]].value,
                  .has_label_smoothing = micro.options.label_smoothing > 0,
                  .has_dropout = micro.options.dropout > 0};
  return run.of_layers(run.workload.config.num_hidden_layers);
}

}  // namespace

PlannedRun PlannedRun::of_layers(int64_t layers) const {
  PlannedRun run = *this;
  config::Config& config = run.workload.config;
  config.num_hidden_layers = layers;
  if (!config.sliding_layers.empty()) config.sliding_layers.resize(layers);
  std::set<std::string> names;
  for (const config::ParameterInfo& parameter : config::ParameterTable(config)) {
    if (frozen && frozen->has(parameter.name, config)) names.insert(parameter.name);
  }
  run.workload.frozen = {config, names};
  return run;
}

at::ScalarType PlannedRun::dtype() const {
  return workload.element_bytes == 8 ? at::kDouble : workload.element_bytes == 4 ? at::kFloat : at::kBFloat16;
}

testing::Stream PlannedRun::stream() const {
  return workload.parallelism == Parallelism::tp ? testing::Stream::tp : testing::Stream::tp_sp;
}

Path PlannedRun::path() const {
  return workload.column_input_storage == ColumnInputStorage::shard_in_place ? Path::symmetric
         : workload.column_input_storage == ColumnInputStorage::gathered     ? Path::gathered
                                                                             : Path::regathered;
}

std::string PlannedRun::name() const {
  const char* paths[] = {"in place", "gathered", "gathered again"};
  const char* modes[] = {"", ", selective", ", full"};
  return (workload.parallelism == Parallelism::tp ? "TP " : "TP+SP ") + std::to_string(workload.tp) + ", " +
         paths[static_cast<int>(workload.column_input_storage)] +
         modes[static_cast<int>(workload.recompute)] + ", " + kind + ", " + micro + ", sequence " +
         std::to_string(workload.sequence_length) + (frozen ? std::string(", frozen: ") + frozen->name : "");
}

std::vector<PlannedRun> runs(int ranks) {
  const Space space = run_space();
  Space frozen = space;
  frozen.exclude({"frozen", kNothing}, {"frozen", kNothing});
  std::vector<Combination> combinations = space.all(space.partial({{"frozen", kNothing}}));
  const std::vector<Combination> more =
      testing::is_full() ? frozen.all() : testing::covering(frozen, /*strength=*/3, /*seed=*/1);
  combinations.insert(combinations.end(), more.begin(), more.end());
  std::vector<PlannedRun> runs;
  for (const Combination& combination : combinations) runs.push_back(run_of(ranks, combination));
  return runs;
}

RunningModel::RunningModel(const PlannedRun& run, const comm::Group& group)
    : run_(run),
      weights_(run.workload.config, group, run.dtype()),
      batch_(testing::random_batch(run.workload.config, run.workload.sequence_length, run.workload.batch_size,
                                   1)),
      step_(testing::make_step(group, run.path(), run.workload.sequence_length, kernels::RandomKey::of(1),
                               run.options.dropout)) {
  step_.recompute = run.workload.recompute;
  step_.split_batch = run.workload.split_batch;
  step_.attention_dropout = run.options.attention_dropout;
  const int64_t sequence = run.workload.sequence_length;
  if (run.options.is_padded) step_.valid = {{1, sequence}, {0, sequence - 1}};
  weights_.initialize_(1);
  for (const nn::UsedParameter& used : weights_.used_parameters()) {
    if (run.workload.frozen.contains(used.parameter->name)) parallel::freeze_(*used.parameter);
  }
  testing::zero_gradients_(weights_);
}

at::Tensor RunningModel::forward() const {
  nn::LossOptions options(batch_.valid_tokens);
  options.label_smoothing = run_.options.label_smoothing;
  options.z_loss = run_.options.z_loss;
  const auto loss = [&](const auto& model) {
    return model.loss(batch_.ids, batch_.labels, options, step_).local();
  };
  if (run_.workload.parallelism == Parallelism::tp) return loss(model::Decoder<nn::Invariant>(weights_));
  return loss(model::Decoder<nn::Sharded<nn::kSequence>>(weights_));
}

}  // namespace shardwise::plan
