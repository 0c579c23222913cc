// Sizes in bytes of one rank's tensors.
#pragma once
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// Returns count / size, rounded up.
inline int64_t parts_of(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

/// The most tokens of a step or a batch: a thousand times those of the largest runs, and few enough that no
/// count of bytes overflows.
inline constexpr int64_t kMostTokens = int64_t{1} << 34;

class Sizes {
 public:
  Sizes(const Workload& workload, int rank) : workload_(workload), shard_(rank_shard(workload, rank)) {}

  const RankShard& shard() const { return shard_; }
  /// [s, b, count].
  int64_t features(int64_t count) const { return shard_.rows * count * workload_.element_bytes; }
  /// [s, b, h]: full hidden states, or a rank's partial sum of them.
  int64_t full_hidden() const { return features(workload_.config.hidden_size); }
  /// The rows of [s, b, h] that the rank's residual stream stores.
  int64_t local_hidden() const {
    return shard_.residual_rows * workload_.config.hidden_size * workload_.element_bytes;
  }
  /// One fp32 (fp64) value for each of `rows`.
  int64_t statistics(int64_t rows) const { return rows * workload_.accumulator_bytes(); }

  /// Features of one rank's queries, keys, values, q|k|v, and what attention returns. Values of latent
  /// attention have a size of their own.
  int64_t query_features() const { return shard_.heads * workload_.config.head_dim; }
  int64_t key_features() const { return shard_.kv_heads * workload_.config.head_dim; }
  int64_t value_features() const { return shard_.kv_heads * value_dim(); }
  int64_t qkv_features() const { return query_features() + key_features() + value_features(); }
  int64_t output_features() const { return shard_.heads * value_dim(); }
  /// Output features of the MLP's first GEMM on one rank.
  int64_t inner_features() const { return workload_.up_projections() * shard_.ffn; }

 private:
  int64_t value_dim() const {
    const config::Config& c = workload_.config;
    return c.latent_attention ? c.latent_attention->v_head_dim : c.head_dim;
  }

  const Workload& workload_;
  RankShard shard_;
};

}  // namespace shardwise::plan
