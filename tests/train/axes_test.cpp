// Every triple of what a training run can choose, on meshes of all axes, against one rank in fp64.
#include <cstdio>
#include <map>

#include "tests/support/covering.h"
#include "tests/support/extent.h"
#include "tests/train/one_rank.h"

namespace shardwise::train::axes_test {
namespace {

using testing::Combination;
using testing::Reference;
using testing::Scratch;
using testing::Space;

/// The numbers of stages, replicas and tensor-parallel ranks.
struct MeshSizes {
  int64_t pp, dp, tp;
  std::string name() const {
    return std::to_string(pp) + " x " + std::to_string(dp) + " x " + std::to_string(tp);
  }
};

constexpr int64_t kLayers = 4, kMostRanks = 8;

std::vector<MeshSizes> meshes() {
  if (!testing::is_full())
    return {{1, 1, 2}, {1, 2, 1}, {2, 1, 1}, {1, 2, 2}, {2, 1, 2},
            {2, 2, 1}, {2, 2, 2}, {4, 1, 2}, {1, 3, 1}};
  std::vector<MeshSizes> all;
  for (int64_t pp = 1; pp <= kLayers; ++pp)
    for (int64_t dp = 1; pp * dp <= kMostRanks; ++dp)
      for (int64_t tp = 1; pp * dp * tp <= kMostRanks; ++tp) all.push_back({pp, dp, tp});
  return all;
}

Space space() {
  Space space;
  std::vector<std::string> names;
  for (const MeshSizes& mesh : meshes()) names.push_back(mesh.name());
  space.add("mesh", names);
  space.add("stream", {"whole", "sharded"});
  space.add("replicas split",
            {"nothing", "states", "states, one copy", "gradients", "gradients, one copy", "weights"});
  space.add("schedule", {"1f1b", "afab", "interleaved"});
  space.add("recompute", {"none", "selective", "full"});
  space.add("head", {"own", "tied"});
  space.add("KV heads", {"8", "2", "1"});
  space.add("family", {"llama", "mistral", "qwen2", "qwen3", "gpt2", "phi3"});
  space.add("frozen", {"nothing", "embeddings", "the first blocks", "norms"});
  space.add("micro-batches", {"1", "2", "3", "4", "5"});
  space.add("heap", {"symmetric", "none"});
  for (const MeshSizes& mesh : meshes()) {
    const auto exclude = [&](bool is_without_effect, const std::string& dimension,
                             const std::vector<std::string>& values) {
      for (const std::string& value : values)
        if (is_without_effect) space.exclude({"mesh", mesh.name()}, {dimension, value});
    };
    exclude(mesh.tp == 1, "stream", {"sharded"});
    exclude(mesh.dp == 1, "replicas split",
            {"states", "states, one copy", "gradients", "gradients, one copy", "weights"});
    exclude(mesh.pp == 1, "schedule", {"afab", "interleaved"});
    exclude(2 * mesh.pp > kLayers, "schedule", {"interleaved"});
    exclude(mesh.pp > 1, "replicas split", {"gradients", "gradients, one copy", "weights"});  // refused
  }
  space.exclude({"family", "gpt2"}, {"KV heads", "2"});
  space.exclude({"family", "gpt2"}, {"KV heads", "1"});
  space.exclude({"family", "gpt2"}, {"head", "own"});
  space.exclude({"heap", "none"}, {"replicas split", "states, one copy"});
  space.exclude({"heap", "none"}, {"replicas split", "gradients, one copy"});
  return space;
}

config::Config config_of(int family, bool is_tied, int64_t kv_heads) {
  config::Config config = testing::small_byte_config();
  config.num_hidden_layers = kLayers;
  config.num_attention_heads = 8;
  config.num_key_value_heads = kv_heads;
  config.tie_word_embeddings = is_tied;
  config.model_type =
      std::vector<std::string>{"llama", "mistral", "qwen2", "qwen3", "gpt2", "phi3"}[size_t(family)];
  if (config.model_type == "mistral") config.sliding_window = 5;
  if (config.model_type == "qwen2") config.qkv_bias = true;
  if (config.model_type == "qwen3") config.qk_norm = true;
  return config.model_type == "gpt2" ? testing::as_gpt2(config) : config;
}

/// Returns globs over the names of the family's tensors.
std::vector<std::string> frozen(int index, bool is_gpt2) {
  const std::vector<std::string> embeddings =
      is_gpt2 ? std::vector<std::string>{"*wte*", "*wpe*"} : std::vector<std::string>{"*embed_tokens*"};
  if (index == 0) return {};
  if (index == 3) return {is_gpt2 ? "*ln_*" : "*norm*"};
  std::vector<std::string> globs = embeddings;
  if (index == 2) globs.insert(globs.end(), {"*.0.*", "*.1.*"});
  return globs;
}

/// The part of a combination that one rank has too.
struct Model {
  int family;
  bool is_tied;
  int64_t kv_heads;
  int frozen;
  int64_t micro_batches;
  auto operator<=>(const Model&) const = default;
};

Model model_of(const Combination& c) {
  return {c[7], c[5] == 1, std::vector<int64_t>{8, 2, 1}[size_t(c[6])], c[8], c[9] + 1};
}

TrainOptions options_of(const Model& model, const Scratch& scratch) {
  TrainOptions options = testing::small_options(scratch);
  options.model_config =
      scratch.put("model.json", config::to_json(config_of(model.family, model.is_tied, model.kv_heads)));
  options.dtype = "fp64";
  options.steps = 3;
  options.dropout = options.attention_dropout = 0.1;
  options.clip_grad = 0.5;
  options.grad_accum = model.micro_batches;
  options.freeze = frozen(model.frozen, model.family == 4);
  return options;
}

void apply(const Combination& c, TrainOptions& options) {
  const MeshSizes mesh = meshes()[size_t(c[0])];
  options.pp = mesh.pp, options.dp = mesh.dp, options.tp = mesh.tp;
  options.sequence_parallel = c[1] == 1;
  options.zero = std::vector<int64_t>{0, 1, 1, 2, 2, 3}[size_t(c[2])];
  options.shared_weights = c[2] == 2 || c[2] == 4 ? "auto" : "off";
  options.pp_schedule = c[3] == 1 ? "afab" : "1f1b";
  options.virtual_stages = c[3] == 2 ? 2 : 1;
  options.recompute = std::vector<const char*>{"none", "selective", "full"}[size_t(c[4])];
}

TEST(Axes, EveryTripleOfChoicesHasTheStepsOfOneRank) {
  const Scratch scratch;
  const Space choices = space();
  std::map<Model, Reference> references;
  const std::vector<Combination> combinations = testing::covering(choices, /*strength=*/3, /*seed=*/1);
  for (const Combination& c : combinations) {
    SCOPED_TRACE(choices.name(c));
    TrainOptions options = options_of(model_of(c), scratch);
    const auto [found, is_new] = references.try_emplace(model_of(c));
    if (is_new) found->second = testing::reference_of(options);
    apply(c, options);
    testing::expect_steps_of(found->second, options, [&](const comm::Group& group) {
      return c[10] == 1 ? group.without_symmetric_heap() : group;
    });
  }
  std::printf("covered: every triple in %zu runs, beside %zu of one rank\n", combinations.size(),
              references.size());
}

}  // namespace
}  // namespace shardwise::train::axes_test
