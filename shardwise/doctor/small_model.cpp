#include "shardwise/doctor/small_model.h"

#include <algorithm>

#include "shardwise/doctor/randomize_1d_parameters.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::doctor {

using model::Config;

namespace {

constexpr int64_t kHidden = 24, kWindow = 5;

/// Returns the smallest head_dim from 8 to the model's whose rotary part is even and not empty.
int64_t head_dim_of(const Config& config) {
  if (config.positions == model::Positions::learned) return std::min<int64_t>(config.head_dim, 4);
  Config candidate = config;
  for (candidate.head_dim = 8; candidate.head_dim < config.head_dim; candidate.head_dim += 2) {
    if (candidate.rotary_dim() >= 2 && candidate.rotary_dim() % 2 == 0) return candidate.head_dim;
  }
  return config.head_dim;
}

/// Config files of families with learned positions cannot express a·d ≠ h.
int64_t hidden_size_of(const Config& small) {
  const bool is_learned = small.positions == model::Positions::learned;
  return is_learned ? small.num_attention_heads * small.head_dim : kHidden;
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
  model::validate(small);
  return small;
}

}  // namespace shardwise::doctor
