// Causal self-attention over this rank's heads: optional q/k norm, rotary positions, then attention with
// sliding window, padding and dropout. It communicates nothing.
#pragma once
#include <memory>
#include <optional>

#include "shardwise/nn/module.h"
#include "shardwise/nn/rotary.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

/// The query and KV heads of this rank, and the KV head of each query head.
struct HeadLayout {
  int64_t heads;                    // local query heads
  int64_t kv_heads;                 // local KV heads
  int64_t head_dim;                 // features of a head
  std::vector<int64_t> kv_of_head;  // local query head → local KV head
  int64_t first_head;               // the first local query head
  int64_t all_heads;                // query heads of the model

  /// Returns the layout of `rank`. A rank holds the contiguous KV heads that its query heads use: KV head =
  /// query head / (query heads per KV head). Several ranks may hold the same KV head, and a rank may use its
  /// KV heads unequally often.
  static HeadLayout of(const base::Split& query, const base::Split& kv, int64_t head_dim, int rank);
};

/// RMSNorm over each query and key head, before rotary. Every rank has the full weights [d] and applies them
/// to its heads, so their gradients are partial.
struct QkNorm {
  ParameterPtr q;  // the weight of query heads, [d]
  ParameterPtr k;  // the weight of key heads, [d]
  double eps;      // added to the mean square

  /// Allocates the weights `name`.q_norm.weight and `name`.k_norm.weight, initialized to 1.
  static QkNorm make(const std::string& name, int64_t head_dim, double eps, const comm::Group& group,
                     at::ScalarType dtype);
};

/// What varies between models in self-attention.
struct SelfAttentionOptions {
  std::optional<QkNorm> norm = {};  // nullopt: none
  /// The number of keys that a query attends to: itself and those before it, like Hugging Face's
  /// sliding_window. nullopt: all of them.
  std::optional<int64_t> window = {};
  /// The layer's index in the model, required by attention dropout and by the KV cache.
  std::optional<int64_t> layer = {};
};

/// Self-attention with a causal mask.
class CausalSelfAttention {
 public:
  /// `rotary`: its tables determine how many elements of a head are rotated, two per frequency.
  CausalSelfAttention(HeadLayout layout, std::shared_ptr<Rotary> rotary, SelfAttentionOptions options = {})
      : layout_(std::move(layout)), rotary_(std::move(rotary)), options_(std::move(options)) {}

  /// Returns the attention output of this rank's heads. Positions count from a sequence's first token; rows
  /// outside step.valid are 0. step.attention_dropout applies this rank's slice of the full model's mask.
  /// With step.cached, rows also attend to the cached tokens of their sequence, and the new keys and values
  /// are appended to the cache; this path records no gradients.
  /// Shapes: `qkv` [s, b, (a + 2k)·d] S<−1> → [s, b, a·d] S<−1>, with a and k this rank's heads.
  /// Saved: q, k and v, or with q/k norm qkv (as many bytes), from which backward recomputes them; the
  /// output; one fp32 per row and head. Backward draws dropout masks again.
  /// Errors: c10::ValueError if the features do not match the heads, step.valid does not match the batch,
  /// attention_dropout is outside [0, 1), or dropout or a cache is used without options.layer.
  /// Source: Su et al. 2021 (rotary), Dao et al. 2022 (attention).
  Placed<Sharded<kFeature>> operator()(const Placed<Sharded<kFeature>>& qkv, const Step& step) const;

  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const;

 private:
  HeadLayout layout_;
  std::shared_ptr<Rotary> rotary_;
  SelfAttentionOptions options_;
};

}  // namespace shardwise::nn
