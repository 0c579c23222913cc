// The head and its cross-entropy in one: the logits exist for a chunk of rows at a time, never for a whole
// sequence.
//
// The gradients need the same logits, so that a backward would have to compute them again, a product as large
// as the forward's. Instead the forward computes the gradients too, before it drops a chunk's logits.
#pragma once
#include "shardwise/nn/linear.h"
#include "shardwise/nn/loss.h"
#include "shardwise/nn/observer.h"

namespace shardwise::nn {

/// Returns cross_entropy(head(x), labels): the cross-entropy of p = softmax(x Wᵀ + b), summed over the tokens
/// and divided by options.valid_tokens; nn/loss.h has the details. Where gradients are recorded, the forward
/// adds the head's gradients to main_grad and backward passes dX on: call zero_grad_ before the forward, and
/// backward on the loss itself. Gradients that are used while a loss without its backward is in them are an
/// error (parallel::check_backwards).
/// Shapes: `x` [s, b, h] I or R, or [s/t, b, h] S<0>, `labels` [s, b] int64, all of them on every rank →
/// scalar I. `observer`, which may be null, sees the chunks' logits and their gradients.
/// Forward: under S<0> an all_gather of x. For each chunk (base/loss_chunks.h) an all_gather of three values
/// for each token, four with label smoothing. Then dX is a Partial, and the forward ends with an all_reduce
/// (I), a reduce_scatter (S<0>) or nothing (R). Backward: nothing.
/// Saved: dX.
/// Cost: logits of base::kLossChunkRows rows, replaced by their gradient; dX.
/// Errors: c10::ValueError for what cross_entropy and column_product refuse, before any communication; in
/// backward, if the gradient of the loss is not 1, or zero_grad_ or another backward was called since the
/// forward.
/// Source: Hsu et al. 2024, Liger Kernel §3.2 (chunks with gradients in the forward), here over a sharded
/// vocabulary.
template <parallel::ColumnInput In>
Placed<Invariant> linear_cross_entropy(const Placed<In>& x, const ColumnParallelLinear& head,
                                       const at::Tensor& labels, const LossOptions& options, const Step& step,
                                       const Observer* observer = nullptr);

extern template Placed<Invariant> linear_cross_entropy(const Placed<Invariant>&, const ColumnParallelLinear&,
                                                       const at::Tensor&, const LossOptions&, const Step&,
                                                       const Observer*);
extern template Placed<Invariant> linear_cross_entropy(const Placed<Sharded<kSequence>>&,
                                                       const ColumnParallelLinear&, const at::Tensor&,
                                                       const LossOptions&, const Step&, const Observer*);
extern template Placed<Invariant> linear_cross_entropy(const Placed<Replicated>&, const ColumnParallelLinear&,
                                                       const at::Tensor&, const LossOptions&, const Step&,
                                                       const Observer*);

}  // namespace shardwise::nn
