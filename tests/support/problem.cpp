#include "tests/support/problem.h"

namespace shardwise::testing {
namespace {

constexpr uint64_t kBatchSeed = 11;

// Llama 3's rotary scaling, with a context so short that all three ranges of its interpolation occur at
// head_dim 6.
constexpr config::RopeScaling kScaling{4, 1, 4, 64};

bool has(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

// Keeps two positions of each sequence, or its only one.
std::vector<base::Range> padded(int64_t sequence) {
  return {{sequence > 1 ? 1 : 0, sequence}, {0, sequence > 3 ? sequence - 1 : sequence}};
}

}  // namespace

config::Config Problem::config() const {
  config::Config config;
  config.vocab_size = vocab;
  config.hidden_size = hidden;
  config.intermediate_size = ffn;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads.query;
  config.num_key_value_heads = heads.kv;
  config.head_dim = head_dim;
  config.max_position_embeddings = 64;
  config.norm = norm;
  config.norm_eps = 1e-5;
  config.activation = activation;
  config.tie_word_embeddings = is_tied;
  config.qkv_bias = biases != Biases::none;
  config.attention_out_bias = config.mlp_bias = biases == Biases::all;
  config.qk_norm = has_qk_norm;
  config.positions = positions;
  config.partial_rotary_factor = partial_rotary_factor;
  config.rope_theta = 100;
  if (heads.kv == 3 || heads.kv == 2) config.rope_scaling = kScaling;
  config.sliding_window = window;
  config.sliding_layers = slides;
  config::validate(config);
  return config;
}

Batch Problem::batch() const {
  Batch batch = random_batch(config(), sequence, kBatch, kBatchSeed);
  batch.label_smoothing = label_smoothing;
  batch.z_loss = z_loss;
  if (!is_padded) return batch;
  batch.valid = padded(sequence);
  for (int64_t i = 0; i < kBatch; ++i) {
    const auto [begin, end] = batch.valid[i];
    const at::Tensor labels = batch.labels.select(1, i);
    labels.narrow(0, 0, begin).fill_(-100);
    labels.narrow(0, end, sequence - end).fill_(-100);
  }
  return batch;
}

bool Problem::has_no_gradient(const std::string& name) const {
  const bool is_of_scores =
      has(name, "q_proj") || has(name, "k_proj") || has(name, "q_norm") || has(name, "k_norm");
  if (sequence == 1 && is_of_scores) return true;
  return has(name, "k_proj.bias") && positions == config::Positions::learned && !has_qk_norm;
}

std::string RunConfig::name() const {
  const char* paths[] = {"in place", "gathered", "gathered again", "in place, no overlap",
                         "gathered again, no overlap"};
  const char* recomputes[] = {"", ", selective recomputation", ", full recomputation"};
  return std::string(stream == Stream::tp ? "TP, " : "TP+SP, ") + paths[static_cast<int>(path)] +
         recomputes[static_cast<int>(recompute)] + (split_batch ? ", split batch" : "");
}

std::vector<RunConfig> run_configs() {
  std::vector<RunConfig> configs;
  for (const Stream stream : {Stream::tp, Stream::tp_sp}) {
    for (const Path path : kPaths) configs.push_back({stream, path});
  }
  return configs;
}

}  // namespace shardwise::testing
