// The splits of a model, whole and of one rank.
#include "shardwise/config/layout.h"

#include <gtest/gtest.h>

namespace shardwise::config::layout_test {
namespace {

/// Even and uneven shards, ranks without ffn columns or vocabulary, KV heads that ranks share, and groups of
/// a quantized model.
TEST(Layout, LocalRangesAreThoseOfTheSplits) {
  int compared = 0;
  for (const auto& [heads, kv_heads] : {std::pair{8, 8}, {8, 2}, {6, 3}, {12, 1}, {7, 7}}) {
    for (const auto& [ffn, vocab] : {std::pair{64, 128}, {101, 127}, {2, 3}, {5, 1}}) {
      for (const int64_t group : {0, 3, 32}) {
        Config config;
        config.num_attention_heads = heads;
        config.num_key_value_heads = kv_heads;
        config.intermediate_size = ffn;
        config.vocab_size = vocab;
        if (group > 0) config.quantization = {.bits = 8, .group_size = group};
        for (int tp = 1; tp <= heads; ++tp) {
          const Layout layout = make_layout(config, tp);
          for (int rank = 0; rank < tp; ++rank) {
            const LocalRanges local = local_ranges(config, tp, rank);
            EXPECT_EQ(local.heads, layout.heads.range(rank));
            EXPECT_EQ(local.kv_heads, layout.kv_heads.range(rank));
            EXPECT_EQ(local.ffn, layout.ffn.range(rank));
            EXPECT_EQ(local.vocab, layout.vocab.range(rank));
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 12 * (36 + 36 + 21 + 78 + 28));
}

}  // namespace
}  // namespace shardwise::config::layout_test
