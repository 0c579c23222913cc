// The GPT models of Korthikanti et al. 2022, arXiv 2205.05198, tables 3 and 5: sequences of 2048 tokens, a
// vocabulary of 51200.
#pragma once
#include "shardwise/config/config.h"

namespace shardwise::plan {

struct PublishedGpt {
  const char* name;
  int64_t hidden_size, layers, heads;
  int64_t tp, pp, batch_size, micro_batch_size, chunks;
  double seconds,
      seconds_recomputed;  // of a step with TP+SP and selective recomputation; with full recomputation
};

inline constexpr PublishedGpt k22B = {"22B", 6144, 48, 64, 8, 1, 4, 4, 1, 1.10, 1.42},
                              k175B = {"175B", 12288, 96, 96, 8, 8, 64, 1, 3, 13.75, 18.13},
                              k530B = {"530B", 20480, 105, 128, 8, 35, 280, 1, 3, 37.83, 49.05},
                              k1T = {"1T", 25600, 128, 160, 8, 64, 512, 1, 1, 71.49, 94.42};

inline config::Config gpt(const PublishedGpt& model) {
  config::Config c = config::preset("gpt2");
  c.hidden_size = model.hidden_size;
  c.intermediate_size = 4 * model.hidden_size;
  c.num_hidden_layers = model.layers;
  c.num_attention_heads = c.num_key_value_heads = model.heads;
  c.head_dim = model.hidden_size / model.heads;
  c.vocab_size = 51200;
  c.max_position_embeddings = 2048;
  return c;
}

}  // namespace shardwise::plan
