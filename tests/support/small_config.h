// The small model config from which tests derive theirs.
#pragma once
#include "shardwise/config/config.h"

namespace shardwise::testing {

/// Returns a Llama config of two layers with odd sizes. 6 query and 3 KV heads: on 2 ranks KV head 1 is
/// replicated.
inline config::Config small_config() {
  config::Config config;
  config.vocab_size = 17;
  config.hidden_size = 10;
  config.intermediate_size = 13;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 3;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  return config;
}

}  // namespace shardwise::testing
