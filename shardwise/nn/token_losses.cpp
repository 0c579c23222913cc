#include "shardwise/nn/token_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "shardwise/kernels/queued_copy.h"
#include "shardwise/parallel/verify.h"

namespace shardwise::nn {

using at::Tensor;

namespace {

void check_options(const LossOptions& options) {
  const double smoothing = options.label_smoothing, z_loss = options.z_loss;
  TORCH_CHECK_VALUE(smoothing >= 0 && smoothing <= 1,
                    "cross_entropy: label_smoothing must lie in [0, 1]; got ", smoothing, " [SW0438]");
  TORCH_CHECK_VALUE(z_loss >= 0, "cross_entropy: z_loss must be 0 or more; got ", z_loss, " [SW0439]");
}

void check_labels(const Tensor& labels, int64_t vocab_size) {
  const Tensor is_bad = labels.ne(kIgnoreIndex).logical_and(labels.lt(0).logical_or(labels.ge(vocab_size)));
  TORCH_CHECK_VALUE(!is_bad.any().item<bool>(), "cross_entropy: labels must lie in [0, ", vocab_size,
                    ") or be ", kIgnoreIndex, "; got ", labels.masked_select(is_bad)[0].item<int64_t>(),
                    " [SW0441]");
}

/// Replaces the labels of padding with kIgnoreIndex.
Tensor without_padding(const Tensor& labels, const Step& step) {
  if (step.valid.empty()) return labels;
  const int64_t s = labels.size(0);
  Tensor result = labels.clone();
  for (size_t i = 0; i < step.valid.size(); ++i) {
    const Tensor sequence = result.select(/*dim=*/1, static_cast<int64_t>(i));
    sequence.slice(0, 0, step.valid[i].begin).fill_(kIgnoreIndex);
    sequence.slice(0, step.valid[i].end, s).fill_(kIgnoreIndex);
  }
  return result;
}

/// Returns the number of each rank's logits of a token, [t, 1].
Tensor logit_counts(const base::Split& vocab, at::TensorOptions options) {
  Tensor counts = at::empty({vocab.ranks(), 1}, options);
  for (int rank = 0; rank < vocab.ranks(); ++rank) counts[rank].fill_(vocab.range(rank).size());
  return counts;
}

}  // namespace

LossOfBatch LossOfBatch::make(const Tensor& labels, const base::Split& vocab, const LossOptions& options,
                              const Step& step) {
  check_options(options);
  check_step(step, labels.size(1));
  const Tensor unpadded = without_padding(labels, step);
  check_labels(unpadded, vocab.size());
  const Tensor flat = kernels::queued_copy(unpadded.reshape({-1}), step.group.device());
  parallel::verify_equal(flat, "the labels", step);
  return {flat,
          {options.label_smoothing, options.z_loss, vocab.size()},
          vocab,
          options.valid_tokens > 0 ? 1 / options.valid_tokens : 0};
}

TokenLosses token_losses(const Tensor& logits, const Tensor& labels, const LossOfBatch& batch,
                         const comm::Group& group) {
  const kernels::TokenLoss& of_token = batch.of_token;
  const int64_t begin = batch.vocab.range(group.rank()).begin, t = group.size();
  const Tensor local = kernels::loss_terms(logits, labels, begin, of_token);
  const base::Split split = base::Split::even("loss terms", of_token.terms() * t, group.size());
  const Tensor terms = group.all_gather(local, split).view({t, of_token.terms(), logits.size(0)});
  const Tensor maxima = terms.select(1, 0), max = maxima.amax(0);
  const Tensor log_sum = kernels::log_sums(terms), lse = max + log_sum;
  Tensor value = log_sum - (terms.select(1, 2).sum(0) - max) * of_token.label_weight();
  if (of_token.is_smoothed()) {
    const Tensor origins = maxima.masked_fill(maxima.isinf(), 0);
    const Tensor shifted = terms.select(1, 3) + (origins - max) * logit_counts(batch.vocab, terms.options());
    value -= shifted.sum(0) * of_token.class_weight();
  }
  if (of_token.z_loss > 0) value += lse.square() * of_token.z_loss;
  return {at::where(labels.eq(kIgnoreIndex), at::zeros_like(value), value), lse};
}

void token_losses_backward_(Tensor& logits, const Tensor& labels, const Tensor& lse, const LossOfBatch& batch,
                            const comm::Group& group) {
  kernels::cross_entropy_backward_(logits, labels, batch.vocab.range(group.rank()).begin, lse,
                                   {batch.per_token, kIgnoreIndex, batch.of_token});
}

}  // namespace shardwise::nn
