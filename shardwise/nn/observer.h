// A callback for a forward's intermediate outputs, to compare two forwards layer by layer.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

namespace shardwise::nn {

/// A point in the forward: the residual stream after the embedding, an attention branch, an MLP branch or the
/// last norm; or the logits and their gradient.
struct Stage {
  /// After which part of the model.
  enum class Kind { embedding, attention, mlp, norm, logits, logits_gradient };
  Kind kind;           // one of these
  int64_t layer = -1;  // of attention and mlp
  bool operator==(const Stage&) const = default;
};

/// A function called with each stage's output, in the order of the forward: this rank's tensor of the
/// residual stream, [s, b, h] or [s/t, b, h], or of the logits, [s, b, v/t]; the loss computes logits, and in
/// training their gradient, in chunks of rows [n, v/t] and calls it for each, in the order of s·b, with
/// memory that the next chunk overwrites. It must not write to the tensor.
/// Set it on all ranks or on none, because it disables deferred reductions. It is not called for recomputed
/// forwards, for attention under full recomputation, nor for blocks that run on a split batch.
using Observer = std::function<void(const Stage& stage, const at::Tensor& local)>;

/// Calls `observer`, if there is one, with `x` and returns `x`.
template <class PlacedValue>
PlacedValue observed(const Observer* observer, const Stage& stage, PlacedValue x) {
  if (observer && *observer) (*observer)(stage, x.local());
  return x;
}

}  // namespace shardwise::nn
