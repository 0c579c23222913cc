// A value on the residual stream whose last sum over the ranks is left to the op that reads it: without
// gradients the next norm reduces, adds the residual and normalizes in one pass over the ranks' partial sums.
#pragma once
#include <optional>
#include <utility>

#include "shardwise/parallel/row_product.h"

namespace shardwise::parallel {

/// value + Σ_ranks y + bias, [s, b, h] I or [s/t, b, h] S<0>. The first who reads it performs the reduction,
/// once.
template <ResidualStream Stream>
struct DeferredReduction {
  std::optional<Placed<Stream>> value;      // none: the pending sum is all
  std::optional<PendingReduction> pending;  // none: `value` is all

  DeferredReduction(Placed<Stream> all) : value(std::move(all)) {}
  explicit DeferredReduction(PendingReduction sum) : pending(std::move(sum)) {}
  DeferredReduction(DeferredReduction&&) noexcept = default;
  DeferredReduction& operator=(DeferredReduction&&) noexcept = default;

  /// The value. Collective while the reduction is pending.
  const Placed<Stream>& reduced(const Step& step) {
    if (pending) {
      const Placed<Stream> sum = reduce<Stream>(*std::exchange(pending, std::nullopt), step);
      value = value ? *value + sum : sum;
    }
    return *value;
  }
};

/// x + y. Nothing of x may be pending; what is pending of y stays so.
template <ResidualStream Stream>
DeferredReduction<Stream> operator+(const DeferredReduction<Stream>& x, DeferredReduction<Stream> y) {
  TORCH_INTERNAL_ASSERT(!x.pending && !(y.pending && y.value));
  y.value = y.value ? *x.value + *y.value : *x.value;
  return y;
}

struct RmsNorm {
  at::Tensor weight;  // [h]
  double eps;
};

/// Up to this size of the message each rank sums all rows, above only its slice, which costs a second
/// synchronization.
inline constexpr int64_t kOneShotBytes = 8 << 10;

/// The RMSNorm of `x`, whose pending reduction it performs in the same pass: the bits of `x.reduced` and the
/// norm one after the other. No gradients. Shapes: `x` [s, b, h] I or [s/t, b, h] S<0> → the same. Cost: to
/// I: all_reduce; to S: reduce_scatter. On shared memory the partial sums are read in place and the reduced
/// tensor is not materialized; under I there is one synchronization up to kOneShotBytes, above two. A norm of
/// a sequence shard is written to the symmetric heap, where peers can read it.
template <ResidualStream Stream>
Placed<Stream> reduce_and_rms_norm(DeferredReduction<Stream>& x, const RmsNorm& norm, const Step& step);
template <>
Placed<Invariant> reduce_and_rms_norm<Invariant>(DeferredReduction<Invariant>&, const RmsNorm&, const Step&);
template <>
Placed<Sharded<kSequence>> reduce_and_rms_norm<Sharded<kSequence>>(DeferredReduction<Sharded<kSequence>>&,
                                                                   const RmsNorm&, const Step&);

}  // namespace shardwise::parallel
