// Dropout on the residual stream: the mask is that of the unsharded model, sliced, at every tp size and
// stream.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"
#include "shardwise/parallel/deferred_reduction.h"

namespace shardwise::nn {

using parallel::DeferredReduction;
using parallel::OutputUse;

/// Where in the model a mask is drawn; no two places share one.
struct Place {
  int64_t layer;
  enum Site : int64_t { embedding, attention_output, mlp_output, attention_probabilities } site;
};

/// The key of a micro-batch's masks, of none of which another step or micro-batch has one. Both count from 0.
kernels::RandomKey masks_key(uint64_t seed, int64_t step, int64_t micro_batch);

/// The key of a place's mask: element i of the whole [s, b, h] is drawn from (key, i); of attention's
/// probabilities, of the whole [b, a, s, ⌈s⌉₃₂] (kernels/attention.h).
kernels::RandomKey mask_key(const kernels::RandomKey& masks_key, const Place& place);

namespace detail {
at::Tensor dropout(const at::Tensor& x, const Step& step, Place place, int64_t first_element, OutputUse use);
}

/// `x` [s, b, h]. p = step.dropout; at 0 it is x itself, and so it is under OutputUse::discarded, whose
/// backward alone masks. Saved: nothing, the mask is drawn again. Errors: c10::ValueError for p outside [0,
/// 1].
template <ResidualStream Stream>
Placed<Stream> dropout(const Placed<Stream>& x, const Step& step, Place place,
                       OutputUse use = OutputUse::needed) {
  const int64_t row = x.local().size(1) * x.local().size(2);
  const bool is_whole = std::is_same_v<Stream, Invariant>;
  return Placed<Stream>(
      detail::dropout(x.local(), step, place, is_whole ? 0 : step.own_sequence().begin * row, use));
}

/// The same of what a branch adds to the residual stream: nothing is pending where something is dropped.
template <ResidualStream Stream>
DeferredReduction<Stream> dropout(DeferredReduction<Stream> y, const Step& step, Place place,
                                  OutputUse use = OutputUse::needed) {
  if (y.pending) return y;
  return dropout(*y.value, step, place, use);
}

}  // namespace shardwise::nn
