#include "shardwise/nn/loss.h"

#include <ATen/TensorOperators.h>

#include "shardwise/nn/token_losses.h"
#include "shardwise/parallel/node.h"
#include "shardwise/parallel/verify.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

void check_shape(const Tensor& labels, const Tensor& logits) {
  TORCH_CHECK_VALUE(logits.dim() == 3 && labels.sizes() == logits.sizes().slice(0, 2),
                    "cross_entropy: labels must be [s, b] for logits [s, b, v/t]; got ", labels.sizes(),
                    " for ", logits.sizes(), " [SW0440]");
}

struct Loss {
  LossOfBatch batch;
  comm::Group group;
};

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, Loss loss) {
    const TokenLosses tokens = token_losses(logits, loss.batch.labels, loss.batch, loss.group);
    context->save_for_backward({logits, tokens.lse});
    const Tensor value = tokens.loss.sum() * loss.batch.per_token;
    parallel::save_state(context, std::move(loss));
    return value;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& [batch, group] = parallel::saved_state<Loss>(context);
    const variable_list saved = context->get_saved_variables();
    LossOfBatch scaled = batch;
    const bool is_on_cpu = gradients[0].is_cpu();
    if (is_on_cpu) scaled.per_token *= gradients[0].item<double>();
    Tensor gradient = saved[0].clone();
    token_losses_backward_(gradient, batch.labels, saved[1], scaled, group);
    if (!is_on_cpu) gradient.mul_(gradients[0]);  // without waiting for its value
    return {gradient, Tensor()};
  }
};

}  // namespace

Placed<Invariant> cross_entropy(const Placed<Sharded<kFeature>>& logits, const Tensor& labels,
                                const base::Split& vocab, const LossOptions& options, const Step& step) {
  check_shape(labels, logits.local());
  Loss loss{LossOfBatch::make(labels, vocab, options, step), step.group};
  const Tensor rows = logits.local().flatten(0, 1).contiguous();
  const LossOfBatch& batch = loss.batch;
  const Tensor value = parallel::needs_gradient(rows)
                           ? CrossEntropy::apply(rows, std::move(loss))
                           : token_losses(rows, batch.labels, batch, step.group).loss.sum() * batch.per_token;
  parallel::verify_equal(value, "the loss", step);
  return Placed<Invariant>(value);
}

}  // namespace shardwise::nn
