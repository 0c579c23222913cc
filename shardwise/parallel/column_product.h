// The column-parallel product fused with f or g: residual stream in, sharded features out.
//
// One autograd node contains the collective, the product and the bias. Its backward adds the weight and bias
// gradients directly to the parameters' main_grad.
#pragma once
#include "shardwise/parallel/parameter.h"
#include "shardwise/parallel/placement.h"
#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// The parameters of a linear layer.
struct LinearParameters {
  ParameterPtr weight;  // the local shard, [out, in]
  ParameterPtr bias;    // may be null
};

/// A placement that a column-parallel product accepts: the residual stream's, or Replicated if the caller has
/// entered the parallel region itself.
template <class P>
concept ColumnInput = ResidualStream<P> || std::same_as<P, Replicated>;

/// Computes y = x Wᵀ + b with W [f/t, h] and b [f/t].
///
///   placement of x   forward      backward of x     backward of W
///   I                nothing      all_reduce        nothing
///   S<0>             all_gather   reduce_scatter    all_gather, unless the gathered x was saved
///   R                nothing      nothing (dx is a Partial)
///
/// Shapes: `x` [s, b, h] I, [s/t, b, h] S<0> or [s, b, h] R → `y` [s, b, f/t] S<−1>.
/// Cost: docs/algorithms.md §3. On shared memory an all_gather reads the peers' shards in place. A frozen W
/// needs no all_gather in backward.
/// Saved: the local x; or the gathered x, with SaveForBackward::gathered and without shared memory; nothing
/// if W is frozen.
/// Errors: c10::ValueError if x is not [·, ·, h]; in backward, if a trained parameter has no main_grad, which
/// zero_grad_ allocates.
Placed<Sharded<kFeature>> column_product(const Placed<Invariant>& x, const LinearParameters& w,
                                         const Step& step);
/// Gathers a sequence shard and computes y = x Wᵀ + b. The overload for Invariant documents all three.
Placed<Sharded<kFeature>> column_product(const Placed<Sharded<kSequence>>& x_shard_s,
                                         const LinearParameters& w, const Step& step);
/// Computes y = x Wᵀ + b inside a parallel region. The overload for Invariant documents all three.
Placed<Sharded<kFeature>> column_product(const Placed<Replicated>& x, const LinearParameters& w,
                                         const Step& step);

}  // namespace shardwise::parallel
