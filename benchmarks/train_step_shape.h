// The model of the benchmarks of a training step: hidden 512, 8 layers, 8 heads, 4 KV heads, ffn 1376, vocab
// 32000, s 256.
#pragma once
#include "shardwise/config/config.h"

namespace shardwise::bench {

inline constexpr int64_t kTrainStepLength = 256;

inline config::Config train_step_shape() {
  config::Config config;
  config.vocab_size = 32000;
  config.hidden_size = 512;
  config.intermediate_size = 1376;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.max_position_embeddings = kTrainStepLength;
  return config;
}

}  // namespace shardwise::bench
