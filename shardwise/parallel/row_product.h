// The row-parallel product fused with f* or g*: sharded features in, residual stream out.
#pragma once
#include <functional>

#include "shardwise/parallel/column_product.h"

namespace shardwise::parallel {

/// Whether the caller needs a forward's output, or runs it only for its backward (full recomputation).
enum class OutputUse { needed, discarded };

/// A recipe for a product's input, so that it need not be saved: backward calls make(from), which must return
/// the same bits. `from` is saved instead; it should be a tensor that is saved anyway.
struct RecomputeInput {
  at::Tensor from;                                         // saved instead of the input
  std::function<at::Tensor(const at::Tensor& from)> make;  // returns the input
};

/// Options of a row-parallel product for recomputation.
struct RowOptions {
  OutputUse use = OutputUse::needed;  // discarded: no product, no collective; returns uninitialized memory
  RecomputeInput input = {};          // empty: the input is saved
};

/// Computes y = Σ_ranks x Wᵀ + b with W [h, f/t] and b [h]; adds b once, after the reduction.
///
///   To     forward          backward
///   I      all_reduce       nothing
///   S<0>   reduce_scatter   all_gather
///   P      nothing          nothing (y is this rank's x Wᵀ, without b)
///
/// Shapes: `x` [s, b, f/t] S<−1> → `y` [s, b, h] I or P, or [s/t, b, h] S<0>.
/// Backward: under S<0> the bias gradient is partial, because each rank has only its rows of dy.
/// Cost: docs/algorithms.md §3. On shared memory the all_gather reads the peers' shards in place.
/// Saved: x, or RecomputeInput::from; nothing if W is frozen.
/// Errors: c10::ValueError if x is not [s, ·, f/t] with s the step's full sequence; in backward, if a trained
/// parameter has no main_grad, which zero_grad_ allocates.
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

/// A sum over the ranks that has not been computed yet: Σ_ranks y + bias.
struct PendingReduction {
  Placed<Partial> y;  // [s, b, h]; owned exclusively, so that the reduction may overwrite it
  ParameterPtr bias;  // [h], added once after the reduction; may be null
};

/// Computes this rank's x Wᵀ and returns the reduction to Stream still to be done; `reduce` completes it.
/// Records no gradients. Shapes and errors: see row_product<Partial>.
template <ResidualStream Stream>
PendingReduction pending_row_product(const Placed<Sharded<kFeature>>& x, const LinearParameters& w,
                                     const Step& step);
template <>
PendingReduction pending_row_product<Invariant>(const Placed<Sharded<kFeature>>&, const LinearParameters&,
                                                const Step&);
template <>
PendingReduction pending_row_product<Sharded<kSequence>>(const Placed<Sharded<kFeature>>&,
                                                         const LinearParameters&, const Step&);

/// Completes `pending`: returns Σ_ranks y + bias, the bits of row_product<Stream>. Records no gradients.
/// Cost: one all_reduce to I, one reduce_scatter to S<0>.
template <ResidualStream Stream>
Placed<Stream> reduce(PendingReduction pending, const Step& step);
template <>
Placed<Invariant> reduce<Invariant>(PendingReduction, const Step&);
template <>
Placed<Sharded<kSequence>> reduce<Sharded<kSequence>>(PendingReduction, const Step&);

}  // namespace shardwise::parallel
