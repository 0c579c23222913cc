// Dropout on the residual stream. Each rank applies its slice of the full model's mask, so results are the
// same at every tp size, under TP and TP+SP.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"
#include "shardwise/parallel/deferred_reduction.h"

namespace shardwise::nn {

using parallel::DeferredReduction;
using parallel::OutputUse;

/// A point in the model at which dropout is applied; each has a mask of its own.
struct DropoutSite {
  int64_t layer;  // -1 for the embedding
  /// Where in the layer, or in the embedding.
  enum class Site : int64_t { embedding, attention_output, mlp_output, attention_probabilities };
  Site site;  // one of these
};

/// Returns the random key of a micro-batch's masks, unique per step and micro-batch. Both count from 0.
kernels::RandomKey masks_key(uint64_t seed, int64_t step, int64_t micro_batch);

/// Returns the random key of one site's mask. Element i of the full tensor is drawn from (key, i); the full
/// tensor is [s, b, h], or [b, a, s, ⌈s⌉₃₂] for attention probabilities (kernels/attention.h).
kernels::RandomKey mask_key(const kernels::RandomKey& masks_key, const DropoutSite& site);

namespace detail {
at::Tensor dropout(const at::Tensor& x, const Step& step, DropoutSite site, int64_t first_element,
                   OutputUse use);
}

/// Sets elements of `x` to 0 with probability step.dropout and scales the others. Returns `x` itself if the
/// probability is 0. Under OutputUse::discarded, forward returns `x` and backward applies the mask.
/// Shapes: `x` [s, b, h] I or [s/t, b, h] S<0> → the same.
/// Saved: nothing; backward draws the mask again.
/// Errors: c10::ValueError if the probability is outside [0, 1].
template <ResidualStream Stream>
Placed<Stream> dropout(const Placed<Stream>& x, const Step& step, DropoutSite site,
                       OutputUse use = OutputUse::needed) {
  const int64_t row = x.local().size(1) * x.local().size(2);
  const bool is_full = std::is_same_v<Stream, Invariant>;
  return Placed<Stream>(
      detail::dropout(x.local(), step, site, is_full ? 0 : step.local_sequence().begin * row, use));
}

/// Applies dropout to a branch output. Returns `y` unchanged if its reduction is pending, which happens only
/// without dropout (defers_reductions).
template <ResidualStream Stream>
DeferredReduction<Stream> dropout(DeferredReduction<Stream> y, const Step& step, DropoutSite site,
                                  OutputUse use = OutputUse::needed) {
  if (y.pending) return y;
  return dropout(*y.value, step, site, use);
}

}  // namespace shardwise::nn
