// The column-parallel product fused with its input collective, f or g: residual stream in, sharded features
// out.
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
/// Shapes: `x` [s, b, h] I, [s/t, b, h] S<0> or [s, b, h] R → `y` [s, b, f/t] S<−1>. Cost: on shared memory
/// an all_gather reads the peers' shards in place. Saved: the local x, or the gathered x for S<0> with
/// SaveForBackward::gathered outside shared memory; nothing if W is frozen, whose gradient then costs
/// nothing. Errors: c10::ValueError if x is not [·, ·, h]; in backward, if a trained parameter has no
/// main_grad (zero_grad_ allocates it).
Placed<Sharded<kFeature>> column_product(const Placed<Invariant>& x, const LinearParameters& w,
                                         const Step& step);
Placed<Sharded<kFeature>> column_product(const Placed<Sharded<kSequence>>& x_shard_s,
                                         const LinearParameters& w, const Step& step);
Placed<Sharded<kFeature>> column_product(const Placed<Replicated>& x, const LinearParameters& w,
                                         const Step& step);

}  // namespace shardwise::parallel
