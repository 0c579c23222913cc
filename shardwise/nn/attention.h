// Causal self-attention of each rank's own heads: rotary positions, then the core. No communication.
#pragma once
#include <memory>

#include "shardwise/nn/module.h"
#include "shardwise/nn/rotary.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// How a rank's q|k|v features are laid out, and which KV head each of its query heads uses. All local.
struct HeadLayout {
  int64_t heads, kv_heads, head_dim;
  std::vector<int64_t> kv_of_head;

  /// A rank holds the KV heads that its query heads need: kv = query / (heads per KV head), contiguous, so a
  /// KV head may be held by several ranks and a rank's ratio may be ragged.
  static HeadLayout of(const base::Split& query, const base::Split& kv, int64_t head_dim, int rank);
};

class CausalSelfAttention {
 public:
  CausalSelfAttention(HeadLayout layout, std::shared_ptr<Rotary> rotary)
      : layout_(std::move(layout)), rotary_(std::move(rotary)) {}

  /// `qkv` [s, b, (a + 2k)·d] of this rank's heads, S<−1> → [s, b, a·d], S<−1>.
  /// Saved: q, k, v, the output, one fp32 per row and head; nothing of qkv itself.
  /// Source: Su et al. 2021 (rotary), Dao et al. 2022 (the core).
  Placed<Sharded<kFeature>> operator()(const Placed<Sharded<kFeature>>& qkv, const Step& step) const;

 private:
  HeadLayout layout_;
  std::shared_ptr<Rotary> rotary_;
};

}  // namespace shardwise::nn
