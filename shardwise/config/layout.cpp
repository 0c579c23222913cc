#include "shardwise/config/layout.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::config {

using base::Split;

namespace {

/// Shards of down_proj end at group boundaries; a boundary between heads may split a group.
int64_t ffn_granule(const Config& config) {
  return config.quantization ? std::max<int64_t>(config.quantization->group_size, 1) : 1;
}

}  // namespace

void check_ranks(const std::string& command, const Config& config, int64_t tp) {
  TORCH_CHECK_VALUE(tp >= 1, command, ": --tp must be at least 1; got ", tp, " [SW0074]");
  TORCH_CHECK_VALUE(tp <= config.num_attention_heads, command, ": --tp must be at most the ",
                    config.num_attention_heads, " query heads; got ", tp, " [SW0200]");
}

LocalRanges local_ranges(const Config& config, int tp, int rank) {
  const base::Range heads = base::even_range(config.num_attention_heads, tp, rank);
  const int64_t group = config.num_attention_heads / config.num_key_value_heads;
  return {heads, base::blocks_of(heads, group),
          base::even_range(config.intermediate_size, tp, rank, ffn_granule(config)),
          base::even_range(config.vocab_size, tp, rank)};
}

Layout make_layout(const Config& config, int tp) {
  TORCH_CHECK_VALUE(tp >= 1 && tp <= config.num_attention_heads, "tp: must be from 1 to the ",
                    config.num_attention_heads, " query heads; got ", tp, " [SW0199]");
  const Split heads = Split::even("heads", config.num_attention_heads, tp);
  return {heads, Split::kv_heads_of(heads, config.num_key_value_heads),
          Split::even("ffn", config.intermediate_size, tp, ffn_granule(config)),
          Split::even("vocab", config.vocab_size, tp)};
}

}  // namespace shardwise::config
