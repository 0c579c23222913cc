#include "shardwise/doctor/small_model.h"

#include <algorithm>

#include "shardwise/doctor/vectors.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::doctor {

using model::Config;

namespace {

constexpr int64_t kHidden = 24, kWindow = 5;

/// The least of 8 elements or more, if the model has so many, of which an even number is turned.
int64_t head_dim_of(const Config& config) {
  if (config.positions == model::Positions::learned) return std::min<int64_t>(config.head_dim, 4);
  Config tried = config;
  for (tried.head_dim = 8; tried.head_dim < config.head_dim; tried.head_dim += 2) {
    if (tried.rotary_dim() >= 2 && tried.rotary_dim() % 2 == 0) return tried.head_dim;
  }
  return config.head_dim;
}

/// Families with learned positions have no words for heads that are together of another size than the stream.
int64_t hidden_size_of(const Config& small) {
  const bool is_learned = small.positions == model::Positions::learned;
  return is_learned ? small.num_attention_heads * small.head_dim : kHidden;
}

}  // namespace

Config in_small(const Config& config) {
  Config small = config;
  small.num_hidden_layers = 2;
  small.head_dim = head_dim_of(config);
  small.hidden_size = hidden_size_of(small);
  small.intermediate_size = 2 * small.hidden_size - 1;
  small.vocab_size = text::BytesTokenizer::kVocabSize;
  small.max_position_embeddings = kSmallLength;
  small.initializer_range = kSpread;
  if (small.sliding_window) small.sliding_window = std::min(*small.sliding_window, kWindow);
  if (!small.slides.empty()) small.slides = {false, true};
  small.bos_token_id.reset();
  small.eos_token_id.clear();
  model::validate(small);
  return small;
}

}  // namespace shardwise::doctor
