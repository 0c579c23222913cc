// A residual stream whose last reduction over the ranks is deferred to the op that reads it. When no
// gradients are recorded, the next norm reduces, adds the residual and normalizes in one pass over the
// partial sums.
#pragma once
#include <optional>
#include <utility>

#include "shardwise/parallel/row_product.h"

namespace shardwise::parallel {

/// The residual stream value + Σ_ranks y + bias, [s, b, h] I or [s/t, b, h] S<0>, where the sum may be
/// pending. The first read completes it.
template <ResidualStream Stream>
struct DeferredReduction {
  std::optional<Placed<Stream>> value;      // nullopt: the pending sum is the full value
  std::optional<PendingReduction> pending;  // nullopt: `value` is complete

  /// A complete value.
  DeferredReduction(Placed<Stream> complete) : value(std::move(complete)) {}
  /// A value that is a pending sum.
  explicit DeferredReduction(PendingReduction sum) : pending(std::move(sum)) {}
  DeferredReduction(DeferredReduction&&) noexcept = default;
  DeferredReduction& operator=(DeferredReduction&&) noexcept = default;

  /// Completes the pending reduction, if any (collective, at most once), and returns the value.
  const Placed<Stream>& reduced(const Step& step) {
    if (pending) {
      const Placed<Stream> sum = reduce<Stream>(*std::exchange(pending, std::nullopt), step);
      value = value ? *value + sum : sum;
    }
    return *value;
  }
};

/// Returns x + y. The reduction of `x` must be complete; that of `y` stays pending.
template <ResidualStream Stream>
DeferredReduction<Stream> operator+(const DeferredReduction<Stream>& x, DeferredReduction<Stream> y) {
  TORCH_INTERNAL_ASSERT(!x.pending && !(y.pending && y.value));
  y.value = y.value ? *x.value + *y.value : *x.value;
  return y;
}

/// The parameters of an RMSNorm.
struct RmsNorm {
  at::Tensor weight;  // [h]
  double eps;         // added to the mean square
};

/// The largest message for which each rank reduces all rows (one_shot). For larger ones each rank reduces a
/// slice, which costs a second synchronization.
inline constexpr int64_t kOneShotBytes = 8 << 10;

/// Completes the pending reduction of `x` and returns the RMSNorm of the result, in one pass; the bits are
/// those of `x.reduced` followed by the norm. Records no gradients. The norm of a sequence shard is in the
/// symmetric heap, where peers can read it.
/// Shapes: `x` [s, b, h] I or [s/t, b, h] S<0> → the same.
/// Cost: one all_reduce under I, one reduce_scatter under S<0>. On shared memory the partial sums are read in
/// place and the reduced tensor is not materialized; under I it takes one synchronization up to
/// kOneShotBytes, two above.
template <ResidualStream Stream>
Placed<Stream> reduce_and_rms_norm(DeferredReduction<Stream>& x, const RmsNorm& norm, const Step& step);
template <>
Placed<Invariant> reduce_and_rms_norm<Invariant>(DeferredReduction<Invariant>&, const RmsNorm&, const Step&);
template <>
Placed<Sharded<kSequence>> reduce_and_rms_norm<Sharded<kSequence>>(DeferredReduction<Sharded<kSequence>>&,
                                                                   const RmsNorm&, const Step&);

}  // namespace shardwise::parallel
