// Row-parallel product with its crossing: sharded features come in, the residual stream goes out.
#pragma once
#include "shardwise/parallel/column_product.h"

namespace shardwise::parallel {

/// y = Σ_ranks x Wᵀ, + b once, after the reduction. W [h, f/t], b [h].
/// Shapes: `x` [s, b, f/t] S<−1> → `y` [s, b, h] I or P, or [s/t, b, h] S<0>.
/// Forward: to I: all_reduce; to S: reduce_scatter; to P: nothing, and no bias. Backward of x: I, P: nothing;
/// S: all_gather, read in place on shared memory. The bias gradient under S holds the own rows' terms
/// (partial). Saved: x.
template <Placement To>
Placed<To> row_product(const Placed<Sharded<kFeature>>& x, const LinearParameters& w, const Step& step);
template <>
Placed<Invariant> row_product<Invariant>(const Placed<Sharded<kFeature>>&, const LinearParameters&,
                                         const Step&);
template <>
Placed<Sharded<kSequence>> row_product<Sharded<kSequence>>(const Placed<Sharded<kFeature>>&,
                                                           const LinearParameters&, const Step&);
template <>
Placed<Partial> row_product<Partial>(const Placed<Sharded<kFeature>>&, const LinearParameters&, const Step&);

}  // namespace shardwise::parallel
