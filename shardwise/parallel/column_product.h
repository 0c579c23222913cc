// Column-parallel product with its crossing: the stream comes in, features sharded over the ranks come out.
//
// One autograd node owns the collective, the product, the bias and the weight gradient, which it adds
// straight into the parameters' main_grad.
#pragma once
#include "shardwise/parallel/parameter.h"
#include "shardwise/parallel/placement.h"
#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// A linear map's parameters; `bias` may be null.
struct LinearParameters {
  ParameterPtr weight;  // [out, in] local slice
  ParameterPtr bias;
};

/// What a column-parallel product takes: the stream, or a whole value that ranks use for different work.
template <class P>
concept ColumnInput = ResidualStream<P> || std::same_as<P, Replicated>;

/// y = x Wᵀ + b with W [f/t, h], b [f/t].
/// Shapes: `x` [s, b, h] I, [s/t, b, h] S<0> or [s, b, h] R → `y` [s, b, f/t] S<−1>.
/// Forward: I, R: nothing. S: all_gather, read in place on shared memory. Backward of x: I: all_reduce,
/// S: reduce_scatter, R: nothing (a Partial). S reads (or, elsewhere, keeps or gathers) all shards again for
/// dW. Saved: the own x (S without shared memory and SaveForBackward::gathered: the gathered one). A frozen W
/// saves nothing, and nothing is read or gathered again for it. Errors: c10::ValueError when x is not [·, ·,
/// h]; in backward when a parameter that is trained has no main_grad (zero_grad_).
Placed<Sharded<kFeature>> column_product(const Placed<Invariant>& x, const LinearParameters& w,
                                         const Step& step);
Placed<Sharded<kFeature>> column_product(const Placed<Sharded<kSequence>>& x_shard_s,
                                         const LinearParameters& w, const Step& step);
Placed<Sharded<kFeature>> column_product(const Placed<Replicated>& x, const LinearParameters& w,
                                         const Step& step);

}  // namespace shardwise::parallel
