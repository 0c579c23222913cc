// f* or g* together with what follows it in a block: the residual sum and its RMSNorm, in one pass.
#pragma once
#include "shardwise/parallel/row_product.h"

namespace shardwise::parallel {

/// Above, that every rank reads all terms costs more than a second synchronization.
inline constexpr int64_t kOneShotBytes = 8 << 10;

/// The stream and its norm.
template <ResidualStream Stream>
struct Normed {
  Placed<Stream> x, norm;
};

struct RmsNorm {
  at::Tensor weight;  // [h]
  double eps;
};

/// x + Σ_ranks y + b, and its RMSNorm: the bits of sum_terms, the sum and the norm one by one. No gradients.
/// Shapes: `x` [s, b, h] I or [s/t, b, h] S<0>, `terms.y` [s, b, h] P → two of x's.
/// Cost: to I: an all_reduce; to S: a reduce_scatter. On shared memory the terms are read where they lie, and
/// the sum is written nowhere; under I each rank sums all rows (one synchronization) up to kOneShotBytes, and
/// above its slice, for all (two). A sequence-sharded norm can be read by peers.
template <ResidualStream Stream>
Normed<Stream> add_rms_norm(const Placed<Stream>& x, RowTerms terms, const RmsNorm& norm, const Step& step);
template <>
Normed<Invariant> add_rms_norm<Invariant>(const Placed<Invariant>&, RowTerms, const RmsNorm&, const Step&);
template <>
Normed<Sharded<kSequence>> add_rms_norm<Sharded<kSequence>>(const Placed<Sharded<kSequence>>&, RowTerms,
                                                            const RmsNorm&, const Step&);

}  // namespace shardwise::parallel
