#include "shardwise/nn/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/parallel/gathered_rows.h"
#include "shardwise/parallel/node.h"
#include "shardwise/parallel/verify.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

/// The options of the loss and this rank's first vocabulary id.
struct Loss {
  kernels::TokenLoss of_token;
  int64_t begin;
  double per_token;  // the weight of a token's loss
};

struct TokenLosses {
  Tensor loss, lse;  // [n]
};

/// Computes every token's loss from the shards' maxima and sums; 0 if its label is ignored.
TokenLosses tokens_of(const Tensor& logits, const Tensor& labels, const Loss& loss,
                      const comm::Group& group) {
  const kernels::TokenLoss& of_token = loss.of_token;
  Tensor max = kernels::row_max(logits);
  group.all_reduce_(max, comm::Reduce::max);
  Tensor sums = kernels::loss_sums(logits, labels, loss.begin, max, of_token);
  group.all_reduce_(sums);
  const Tensor log_sum = sums[0].log(), lse = max + log_sum;
  Tensor value = log_sum - sums[1] * of_token.label_weight();
  if (of_token.label_smoothing > 0) value -= sums[2] * of_token.class_weight();
  if (of_token.z_loss > 0) value += lse.square() * of_token.z_loss;
  return {at::where(labels.eq(kIgnoreIndex), at::zeros_like(value), value), lse};
}

void check_options(const LossOptions& options) {
  const double smoothing = options.label_smoothing, z_loss = options.z_loss;
  TORCH_CHECK_VALUE(smoothing >= 0 && smoothing <= 1,
                    "cross_entropy: label_smoothing must lie in [0, 1]; got ", smoothing, " [SW0438]");
  TORCH_CHECK_VALUE(z_loss >= 0, "cross_entropy: z_loss must be 0 or more; got ", z_loss, " [SW0439]");
}

void check_shape(const Tensor& labels, const Tensor& logits) {
  TORCH_CHECK_VALUE(logits.dim() == 3 && labels.sizes() == logits.sizes().slice(0, 2),
                    "cross_entropy: labels must be [s, b] for logits [s, b, v/t]; got ", labels.sizes(),
                    " for ", logits.sizes(), " [SW0440]");
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

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& labels, Loss loss,
                        const comm::Group& group) {
    const TokenLosses tokens = tokens_of(logits, labels, loss, group);
    context->save_for_backward({logits, labels, tokens.lse});
    parallel::save_state(context, loss);
    return tokens.loss.sum() * loss.per_token;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Loss& loss = parallel::saved_state<Loss>(context);
    const variable_list saved = context->get_saved_variables();
    const double scale = gradients[0].item<double>() * loss.per_token;
    return {kernels::cross_entropy_backward(saved[0], saved[1], loss.begin, saved[2],
                                            {scale, kIgnoreIndex, loss.of_token}),
            Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Placed<Invariant> cross_entropy(const Placed<Sharded<kFeature>>& logits, const Tensor& all_labels,
                                const base::Split& vocab, const LossOptions& options, const Step& step) {
  check_options(options);
  check_shape(all_labels, logits.local());
  check_step(step, all_labels.size(1));
  const Tensor labels = without_padding(all_labels, step);
  check_labels(labels, vocab.size());
  const Loss loss{{options.label_smoothing, options.z_loss, vocab.size()},
                  vocab.range(step.group.rank()).begin,
                  options.valid_tokens > 0 ? 1 / options.valid_tokens : 0};
  const Tensor rows = logits.local().flatten(0, 1), flat_labels = labels.reshape({-1});
  parallel::verify_equal(flat_labels, "the labels", step);
  const Tensor value = parallel::needs_gradient(rows)
                           ? CrossEntropy::apply(rows, flat_labels, loss, step.group)
                           : tokens_of(rows, flat_labels, loss, step.group).loss.sum() * loss.per_token;
  parallel::verify_equal(value, "the loss", step);
  return Placed<Invariant>(value);
}

}  // namespace shardwise::nn
