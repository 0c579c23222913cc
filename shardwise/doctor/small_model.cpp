#include "shardwise/doctor/small_model.h"

#include <algorithm>
#include <random>

#include "shardwise/base/files.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::doctor {

using config::Config;

namespace {

/// Two ranks have enough rows of most linear layers to pack bf16 weights for inference.
constexpr int64_t kHidden = 60;
constexpr int64_t kWindow = 5;
constexpr const char *kText = "text", *kConfig = "config.json";
constexpr size_t kTextBytes = 4096;
constexpr int64_t kScheduledSteps = 8;  // of the learning rate; the smoke test runs fewer

/// Returns the smallest head_dim from 8 to the model's whose rotary part is even and not empty; with learned
/// positions, one that leaves hidden_size near kHidden.
int64_t head_dim_of(const Config& config) {
  if (config.positions == config::Positions::learned)
    return std::min(config.head_dim, std::max<int64_t>(2, kHidden / config.num_attention_heads));
  Config candidate = config;
  for (candidate.head_dim = 8; candidate.head_dim < config.head_dim; candidate.head_dim += 2) {
    if (candidate.rotary_dim() >= 2 && candidate.rotary_dim() % 2 == 0) return candidate.head_dim;
  }
  return config.head_dim;
}

/// Config files of families with learned positions cannot express a·d ≠ h.
int64_t hidden_size_of(const Config& small) {
  const bool is_learned = small.positions == config::Positions::learned;
  return is_learned ? small.num_attention_heads * small.head_dim : kHidden;
}

/// Returns random bytes, so that any wrong window or shift changes the loss.
std::string random_text(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(kTextBytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random() & 0xff);
  return text;
}

}  // namespace

Config shrink(const Config& config) {
  Config small = config;
  small.num_hidden_layers = 2;
  small.head_dim = head_dim_of(config);
  small.hidden_size = hidden_size_of(small);
  small.intermediate_size = 2 * small.hidden_size - 1;
  small.vocab_size = text::BytesTokenizer::kVocabSize;
  small.max_position_embeddings = kSmallSeqLen;
  small.initializer_range = kInitStd;
  if (small.sliding_window) small.sliding_window = std::min(*small.sliding_window, kWindow);
  if (!small.sliding_layers.empty()) small.sliding_layers = {false, true};
  small.bos_token_id.reset();
  small.eos_token_id.clear();
  config::validate(small);
  return small;
}

void write_inputs(const TrainingSmokeTest& smoke_test) {
  base::write_text(smoke_test.directory / kText, random_text(smoke_test.seed));
  base::write_text(smoke_test.directory / kConfig, config::to_json(shrink(smoke_test.config)));
}

train::TrainOptions smoke_test_options(const TrainingSmokeTest& smoke_test, plan::Parallelism parallelism,
                                       int tp) {
  train::TrainOptions options;
  options.text = {(smoke_test.directory / kText).string()};
  options.model_config = (smoke_test.directory / kConfig).string();
  options.dtype = smoke_test.dtype == at::kBFloat16 ? "bf16" : "fp32";
  options.seq_len = kSmallSeqLen;
  options.batch_size = 2;
  options.grad_accum = 2;
  options.steps = kScheduledSteps;
  options.warmup = kScheduledSteps;
  options.seed = smoke_test.seed;
  options.lr = 0.1;         // one step changes bf16 weights too
  options.clip_grad = 0.1;  // below every gradient norm of this run
  options.tp = tp;
  options.sequence_parallel = parallelism == plan::Parallelism::tp_sp;
  return options;
}

train::TrainOptions resume_options(train::TrainOptions options, const std::filesystem::path& checkpoint,
                                   int tp) {
  options.model_config.reset();
  options.resume = checkpoint.string();
  options.tp = tp;
  return options;
}

}  // namespace shardwise::doctor
