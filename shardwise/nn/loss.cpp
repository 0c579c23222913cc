#include "shardwise/nn/loss.h"

#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "shardwise/base/mutation.h"
#include "shardwise/kernels/cross_entropy.h"
#include "shardwise/parallel/node.h"
#include "shardwise/parallel/rows.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

struct TokenLoss {
  Tensor loss, lse;  // [n]
};

/// −log softmax of each token's label, from the shards' maxima and sums; 0 where the label is ignored.
TokenLoss token_loss(const Tensor& logits, const Tensor& labels, int64_t begin, const comm::Group& group) {
  Tensor max = kernels::row_max(logits);
  if (!base::mutated(base::Mutation::local_vocab_max)) group.all_reduce_(max, comm::Reduce::max);
  Tensor sums = kernels::sum_exp_and_target(logits, labels, begin, max);
  group.all_reduce_(sums);
  const Tensor log_sum = sums[0].log();
  const Tensor loss = at::where(labels.eq(kIgnoreIndex), at::zeros_like(log_sum), log_sum - sums[1]);
  return {loss, max + log_sum};
}

void check_labels(const Tensor& labels, int64_t vocab_size) {
  const Tensor is_bad = labels.ne(kIgnoreIndex).logical_and(labels.lt(0).logical_or(labels.ge(vocab_size)));
  TORCH_CHECK_VALUE(!is_bad.any().item<bool>(), "cross_entropy: labels must lie in [0, ", vocab_size,
                    ") or be ", kIgnoreIndex, "; got ", labels.masked_select(is_bad)[0].item<int64_t>());
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  struct Scale {
    int64_t begin;
    double per_token;
  };

  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& labels, Scale scale,
                        const comm::Group& group) {
    const TokenLoss tokens = token_loss(logits, labels, scale.begin, group);
    context->save_for_backward({logits, labels, tokens.lse});
    parallel::keep(context, scale);
    return tokens.loss.sum() * scale.per_token;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Scale& scale = parallel::kept<Scale>(context);
    const variable_list saved = context->get_saved_variables();
    const double factor = gradients[0].item<double>() * scale.per_token;
    return {kernels::cross_entropy_backward(saved[0], saved[1], scale.begin, saved[2], factor, kIgnoreIndex),
            Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Placed<Invariant> cross_entropy(const Placed<Sharded<kFeature>>& logits, const Tensor& labels,
                                const base::Split& vocab, double valid_tokens, const Step& step) {
  check_labels(labels, vocab.size());
  if (base::mutated(base::Mutation::mean_over_local_tokens))
    valid_tokens = labels.ne(kIgnoreIndex).sum().item<double>();
  const CrossEntropy::Scale scale{vocab.range(step.group.rank()).begin,
                                  valid_tokens > 0 ? 1 / valid_tokens : 0};
  const Tensor rows = logits.local().flatten(0, 1), flat_labels = labels.reshape({-1});
  if (parallel::needs_gradient(rows)) {
    return Placed<Invariant>(CrossEntropy::apply(rows, flat_labels, scale, step.group));
  }
  return Placed<Invariant>(token_loss(rows, flat_labels, scale.begin, step.group).loss.sum() *
                           scale.per_token);
}

}  // namespace shardwise::nn
