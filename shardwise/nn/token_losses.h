// The losses of single tokens from vocabulary-sharded logits: what cross_entropy and linear_cross_entropy
// share.
#pragma once
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/nn/loss.h"

namespace shardwise::nn {

/// What the loss of a batch needs besides logits. Build it with `make`, which checks everything.
struct LossOfBatch {
  at::Tensor labels;            // [s·b], kIgnoreIndex in padding
  kernels::TokenLoss of_token;  // options
  base::Split vocab;            // of the logits
  double per_token;             // the weight of a token's loss

  /// Errors: c10::ValueError for labels, options or a step that cross_entropy refuses (loss.h).
  static LossOfBatch make(const at::Tensor& labels, const base::Split& vocab, const LossOptions& options,
                          const Step& step);
};

/// Each token's loss and its log Σ exp(logit), [n] fp32 (fp64).
struct TokenLosses {
  at::Tensor loss, lse;
};

/// Returns the losses of some tokens, 0 where the label is ignored; the same bits on every rank.
/// Collective: one all_gather of three values for each token, four with label smoothing.
/// Shapes: `logits` [n, v/t], `labels` [n], those tokens' labels of `batch`.
TokenLosses token_losses(const at::Tensor& logits, const at::Tensor& labels, const LossOfBatch& batch,
                         const comm::Group& group);

/// Replaces logits by the gradient of Σ token losses · per_token. Shapes: those of token_losses, `lse` [n].
void token_losses_backward_(at::Tensor& logits, const at::Tensor& labels, const at::Tensor& lse,
                            const LossOfBatch& batch, const comm::Group& group);

}  // namespace shardwise::nn
