// Row-parallel product with its crossing: sharded features come in, the residual stream goes out.
#pragma once
#include <functional>

#include "shardwise/parallel/column_product.h"

namespace shardwise::parallel {

/// Whether a forward's value is wanted, or its backward alone, as when it runs again in backward.
enum class OutputUse { needed, discarded };

/// Lets backward make a product's input again, by make(from), the same bits, so that it need not be kept.
/// `from` is kept instead: a tensor that backward needs anyway.
struct RecomputeInput {
  at::Tensor from;
  std::function<at::Tensor(const at::Tensor& from)> make;
};

/// What recomputation asks of a row-parallel product; nothing, by default.
struct RowOptions {
  OutputUse use = OutputUse::needed;  // unused: nothing is multiplied or sent, the result is uninitialized
  RecomputeInput input = {};          // empty: the input is kept
};

/// y = Σ_ranks x Wᵀ, + b once, after the reduction. W [h, f/t], b [h].
/// Shapes: `x` [s, b, f/t] S<−1> → `y` [s, b, h] I or P, or [s/t, b, h] S<0>.
/// Forward: to I: all_reduce; to S: reduce_scatter; to P: nothing, and no bias. Backward of x: I, P: nothing;
/// S: all_gather, read in place on shared memory. The bias gradient under S holds the own rows' terms
/// (partial). Saved: x, or what it is made from, unless W is frozen. Errors: c10::ValueError when x is not
/// [s, ·, f/t] with s the step's whole sequence; in backward when a parameter that is trained has no
/// main_grad (zero_grad_).
template <Placement To>
Placed<To> row_product(const Placed<Sharded<kFeature>>& x, const LinearParameters& w, const Step& step,
                       const RowOptions& options = {});
template <>
Placed<Invariant> row_product<Invariant>(const Placed<Sharded<kFeature>>&, const LinearParameters&,
                                         const Step&, const RowOptions&);
template <>
Placed<Sharded<kSequence>> row_product<Sharded<kSequence>>(const Placed<Sharded<kFeature>>&,
                                                           const LinearParameters&, const Step&,
                                                           const RowOptions&);
template <>
Placed<Partial> row_product<Partial>(const Placed<Sharded<kFeature>>&, const LinearParameters&, const Step&,
                                     const RowOptions&);

/// A sum over the ranks that is still to be made: Σ_ranks y + bias.
struct PendingReduction {
  Placed<Partial> y;  // [s, b, h]; nobody else reads it: the reduction may overwrite it
  ParameterPtr bias;  // [h], added once after the reduction; may be null
};

/// row_product<Stream> without its reduction. No gradients. Shapes and errors: row_product<Partial>'s.
template <ResidualStream Stream>
PendingReduction pending_row_product(const Placed<Sharded<kFeature>>& x, const LinearParameters& w,
                                     const Step& step);
template <>
PendingReduction pending_row_product<Invariant>(const Placed<Sharded<kFeature>>&, const LinearParameters&,
                                                const Step&);
template <>
PendingReduction pending_row_product<Sharded<kSequence>>(const Placed<Sharded<kFeature>>&,
                                                         const LinearParameters&, const Step&);

/// Σ_ranks y + bias, bit-equal to row_product<Stream>. No gradients.
/// Cost: to I: all_reduce; to S: reduce_scatter.
template <ResidualStream Stream>
Placed<Stream> reduce(PendingReduction pending, const Step& step);
template <>
Placed<Invariant> reduce<Invariant>(PendingReduction, const Step&);
template <>
Placed<Sharded<kSequence>> reduce<Sharded<kSequence>>(PendingReduction, const Step&);

}  // namespace shardwise::parallel
