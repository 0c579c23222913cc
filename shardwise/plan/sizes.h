// Bytes of one rank's tensors.
#pragma once
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

class Sizes {
 public:
  Sizes(const Workload& workload, int rank) : workload_(workload), share_(share_of(workload, rank)) {}

  const Share& share() const { return share_; }
  /// [s, b, count].
  int64_t features(int64_t count) const { return share_.rows * count * workload_.element_bytes; }
  /// [s, b, h], a term of the stream's sum.
  int64_t whole() const { return features(workload_.config.hidden_size); }
  /// What the rank holds of it.
  int64_t stream() const {
    return share_.stream_rows * workload_.config.hidden_size * workload_.element_bytes;
  }
  /// One number for each of `rows`.
  int64_t statistics(int64_t rows) const { return rows * workload_.accumulator_bytes(); }

  /// Features of one rank's attention: its query heads', and with their KV heads'.
  int64_t query_features() const { return share_.heads * workload_.config.head_dim; }
  int64_t key_features() const { return share_.kv_heads * workload_.config.head_dim; }
  int64_t qkv_features() const { return query_features() + 2 * key_features(); }
  /// Of the MLP's first product.
  int64_t inner_features() const { return workload_.mlp_inputs() * share_.ffn; }

 private:
  const Workload& workload_;
  Share share_;
};

}  // namespace shardwise::plan
