// Once per optimizer step, on the main gradients: sync, then norm, then clip.
#pragma once
#include "shardwise/parallel/parameter.h"

namespace shardwise::parallel {

/// Sums what must be summed over tp: every partial gradient, and KV slices held by several ranks (zero-filled
/// where a rank holds none). Afterward replicas are equal bit for bit. Cost: one all_reduce holding all of
/// it; none when there is nothing to sum.
void sync_gradients_(const ParamSpecs& specs, const comm::Group& group);

enum class Norm { one, two, inf };

/// The norm of the unsharded model's gradient, each element counted once, at its lowest holder; fp64 sums,
/// the same bits on every rank. Cost: one all_reduce of one element.
double gradient_norm(const ParamSpecs& specs, Norm norm, const comm::Group& group);

/// sync_gradients_, then the 2-norm of what that leaves. Cost: theirs.
double synced_norm_(const ParamSpecs& specs, const comm::Group& group);

/// Scales all gradients by max_norm / (norm + 1e-6) when that is below one, as
/// torch.nn.utils.clip_grad_norm_.
void clip_gradients_(const ParamSpecs& specs, double norm, double max_norm);

}  // namespace shardwise::parallel
