// Causal self-attention of each rank's own heads: q/k norm where a model has it, rotary positions, then the
// core, with windows, padding and dropout. No communication.
#pragma once
#include <memory>
#include <optional>

#include "shardwise/nn/module.h"
#include "shardwise/nn/rotary.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// How a rank's q|k|v features are laid out, and which KV head each of its query heads uses. All local.
struct HeadLayout {
  int64_t heads, kv_heads, head_dim;
  std::vector<int64_t> kv_of_head;
  int64_t first_head, all_heads;  // this rank's among the whole model's query heads

  /// A rank holds the KV heads that its query heads need: kv = query / (heads per KV head), contiguous, so a
  /// KV head may be held by several ranks and a rank's ratio may be ragged.
  static HeadLayout of(const base::Split& query, const base::Split& kv, int64_t head_dim, int rank);
};

/// RMSNorm over each query and key head before it is rotated; every rank has the whole weights, [d], and sees
/// its own heads, so their gradients are terms.
struct QkNorm {
  ParameterPtr q, k;
  double eps;

  /// Weights `name`.q_norm.weight and `name`.k_norm.weight, ones at first.
  static QkNorm make(const std::string& name, int64_t head_dim, double eps, const comm::Group& group,
                     at::ScalarType dtype);
};

struct SelfAttentionOptions {
  std::optional<QkNorm> norm = {};
  /// A query sees itself and the keys before it, this many together, as Hugging Face's sliding_window counts.
  /// None: all keys before it.
  std::optional<int64_t> window = {};
  /// The layer that attention dropout draws its masks for and whose place in a cache is taken; both without
  /// one are refused.
  std::optional<int64_t> layer = {};
};

class CausalSelfAttention {
 public:
  /// Which elements of a head are rotated is the tables' affair: the first two per frequency, if any.
  CausalSelfAttention(HeadLayout layout, std::shared_ptr<Rotary> rotary, SelfAttentionOptions options = {})
      : layout_(std::move(layout)), rotary_(std::move(rotary)), options_(std::move(options)) {}

  /// `qkv` [s, b, (a + 2k)·d] of this rank's heads, S<−1> → [s, b, a·d], S<−1>. Outside step.valid the
  /// result is 0, and positions are counted from a sequence's first token. step.attention_dropout drops
  /// probabilities: the mask is the unsharded model's, whatever the tp size and stream.
  /// Saved: q, k and v, and nothing of qkv itself; with q/k norm qkv, as many bytes, from which backward
  /// makes them again; the output; one fp32 per row and head. Masks are made again. With step.cached a row
  /// attends to its text's earlier tokens too, and keys and values of the new ones go to the cache; without
  /// gradients. Errors: c10::ValueError when the features do not fit the heads, step.valid not the batch,
  /// attention_dropout does not lie in [0, 1), dropout or a cache come without a layer. Source: Su et al.
  /// 2021 (rotary), Dao et al. 2022 (the core).
  Placed<Sharded<kFeature>> operator()(const Placed<Sharded<kFeature>>& qkv, const Step& step) const;

  void append_parameters(UsedParameters& roles) const;

 private:
  HeadLayout layout_;
  std::shared_ptr<Rotary> rotary_;
  SelfAttentionOptions options_;
};

}  // namespace shardwise::nn
