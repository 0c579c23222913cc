// Row-parallel product with its crossing: sharded features come in, the residual stream goes out.
#pragma once
#include <functional>
#include <memory>

#include "shardwise/parallel/column_product.h"

namespace shardwise::comm {
class Work;
}

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

/// A row-parallel product before its crossing: the sum over the ranks, and the bias after it, are left to who
/// reads it, once.
struct RowTerms {
  Placed<Partial> y;                       // nobody else's: summing may overwrite it
  ParameterPtr bias;                       // may be null
  std::shared_ptr<comm::Work> begun = {};  // where the sum is under way: it must be ended
};

/// row_product<Invariant> whose sum is under way when it returns, for those who have other work meanwhile;
/// sum_terms ends it. Shapes, cost, backward, bits and errors are that one's.
RowTerms begun_row_product(const Placed<Sharded<kFeature>>& x, const LinearParameters& w, const Step& step,
                           const RecomputeInput& input = {});

/// Without gradients. Shapes and errors: row_product<Partial>'s; in the blocks of row_product<Stream>.
template <ResidualStream Stream>
RowTerms row_terms(const Placed<Sharded<kFeature>>& x, const LinearParameters& w, const Step& step);
template <>
RowTerms row_terms<Invariant>(const Placed<Sharded<kFeature>>&, const LinearParameters&, const Step&);
template <>
RowTerms row_terms<Sharded<kSequence>>(const Placed<Sharded<kFeature>>&, const LinearParameters&,
                                       const Step&);

/// The rest of row_product<Stream>: the same bits.
template <ResidualStream Stream>
Placed<Stream> sum_terms(RowTerms terms, const Step& step);
template <>
Placed<Invariant> sum_terms<Invariant>(RowTerms, const Step&);
template <>
Placed<Sharded<kSequence>> sum_terms<Sharded<kSequence>>(RowTerms, const Step&);

}  // namespace shardwise::parallel
