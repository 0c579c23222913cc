#include "shardwise/nn/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "shardwise/base/loss_chunks.h"
#include "shardwise/kernels/grad.h"
#include "shardwise/kernels/product.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/nn/token_losses.h"
#include "shardwise/parallel/blockwise_reduce_scatter.h"
#include "shardwise/parallel/node.h"
#include "shardwise/parallel/verify.h"
#include "shardwise/parallel/weight_product.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::GatheredRows;
using parallel::LinearParameters;
using parallel::variable_list;

namespace {

/// What a forward reads besides x.
struct Head {
  LinearParameters w;
  LossOfBatch batch;
  Step step;
  const Observer* observer;  // may be null
};

/// The gradients that a forward computes; undefined tensors are not needed.
struct HeadGradients {
  Tensor dx;            // [s·b, h], a Partial
  Tensor weight, bias;  // main_grad

  bool any() const { return dx.defined() || weight.defined() || bias.defined(); }
};

/// Computes losses and gradients of rows, in the order in which they are added.
class ChunkedLoss {
 public:
  /// `x`: any tensor of the rows' dtype; `largest`: the most rows that one call of `add` gets.
  ChunkedLoss(const Head& head, HeadGradients gradients, const Tensor& x, int64_t largest)
      : head_(head),
        gradients_(std::move(gradients)),
        logits_(at::empty({std::min(largest, base::kLossChunkRows), head.w.weight->size(0)}, x.options())),
        losses_(at::empty(head.batch.labels.sizes(),
                          x.options().dtype(kernels::accumulator_type(x.scalar_type())))) {}

  /// Adds the next rows, [n, h], in chunks of equal size.
  void add(const Tensor& rows) {
    const int64_t n = rows.size(0), chunks = base::loss_chunk_count(n);
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t begin = n * i / chunks, end = n * (i + 1) / chunks;
      add_chunk(rows.narrow(0, begin, end - begin));
    }
  }

  /// Returns the sum of the added rows' losses.
  Tensor sum() const { return losses_.sum(); }

 private:
  void add_chunk(const Tensor& x) {
    const int64_t n = x.size(0);
    const Tensor labels = head_.batch.labels.narrow(0, begin_, n);
    Tensor logits = logits_.narrow(0, 0, n);
    parallel::weight_product_out(logits, x, *head_.w.weight);
    if (head_.w.bias) logits.add_(head_.w.bias->value.detach());
    observe(Stage::Kind::logits, logits);
    const TokenLosses tokens = token_losses(logits, labels, head_.batch, head_.step.group);
    losses_.narrow(0, begin_, n).copy_(tokens.loss);
    if (gradients_.any()) {
      token_losses_backward_(logits, labels, tokens.lse, head_.batch, head_.step.group);
      observe(Stage::Kind::logits_gradient, logits);
      add_gradients(x, logits);
    }
    begin_ += n;
  }

  void add_gradients(const Tensor& x, const Tensor& dy) {
    if (gradients_.dx.defined()) {
      Tensor dx = gradients_.dx.narrow(0, begin_, x.size(0));
      kernels::product_out(dx, dy, head_.w.weight->value.detach());
    }
    if (gradients_.bias.defined()) kernels::add_bias_grad_(gradients_.bias, dy);
    if (gradients_.weight.defined()) kernels::add_weight_grad_(gradients_.weight, dy, x);
  }

  void observe(Stage::Kind kind, const Tensor& rows) const {
    if (head_.observer && *head_.observer) (*head_.observer)({kind}, rows);
  }

  const Head& head_;
  HeadGradients gradients_;
  Tensor logits_;      // of a chunk, then their gradient
  Tensor losses_;      // [s·b]
  int64_t begin_ = 0;  // of the next row
};

/// The input's rows in the order of s·b, on every rank the same, and the reduction of their gradient.
template <parallel::ColumnInput In>
struct InputRows;

template <>
struct InputRows<Replicated> {
  static void add_to(ChunkedLoss& loss, const Tensor& x, const Step& /*step*/) {
    loss.add(parallel::as_matrix(x));
  }
  static int64_t largest(const Tensor& x, const Step& /*step*/) { return x.size(0) * x.size(1); }
  static Tensor reduced(const Tensor& dx, const Step& /*step*/) { return dx; }
};

template <>
struct InputRows<Invariant> : InputRows<Replicated> {
  static void add_to(ChunkedLoss& loss, const Tensor& x, const Step& step) {
    parallel::verify_equal(x, "a column-parallel layer's input", step);
    InputRows<Replicated>::add_to(loss, x, step);
  }
  static Tensor reduced(Tensor dx, const Step& step) {
    step.group.all_reduce_(dx);
    return dx;
  }
};

template <>
struct InputRows<Sharded<kSequence>> {
  static void add_to(ChunkedLoss& loss, const Tensor& x, const Step& step) {
    const GatheredRows rows = GatheredRows::gather(x, step);
    parallel::verify_equal(rows, "a column-parallel layer's gathered input", step);
    for (int rank = 0; rank < rows.ranks(); ++rank)
      rows.matrix(rank);  // waits, before the loss's collectives
    for (const base::Range& ranks : base::weight_gradient_ranks(step.sequence, x.size(1)))
      loss.add(rows.matrix(ranks));
  }
  static int64_t largest(const Tensor& x, const Step& step) {
    return base::largest_weight_gradient_rows(step.sequence, x.size(1));
  }
  static Tensor reduced(const Tensor& dx, const Step& step) {
    return parallel::reduce_scatter_rows(dx, step);
  }
};

struct LossAndGradient {
  Tensor loss, dx;
};

/// `gradients.dx` is [s·b, h].
template <parallel::ColumnInput In>
LossAndGradient run(const Tensor& x, const Head& head, const HeadGradients& gradients) {
  using Rows = InputRows<In>;
  const Tensor sum = [&] {
    ChunkedLoss loss(head, gradients, x, Rows::largest(x, head.step));
    Rows::add_to(loss, x, head.step);
    return loss.sum();
  }();
  Tensor dx = gradients.dx;
  if (dx.defined()) dx = Rows::reduced(dx.view({head.step.sequence.size(), x.size(1), x.size(2)}), head.step);
  return {sum * head.batch.per_token, dx};
}

/// Returns where to put the gradients that are needed.
/// Errors: c10::ValueError if a trained parameter has no main_grad.
HeadGradients gradients_of(const Tensor& x, const Head& head) {
  HeadGradients gradients;
  gradients.weight = head.w.weight->main_grad_if_trainable();
  if (head.w.bias) gradients.bias = head.w.bias->main_grad_if_trainable();
  if (x.requires_grad())
    gradients.dx = head.step.group.empty({head.batch.labels.size(0), x.size(2)}, x.scalar_type());
  return gradients;
}

/// The parameters whose gradients a forward has added.
std::vector<ParameterPtr> trained(const LinearParameters& w) {
  std::vector<ParameterPtr> parameters;
  for (const ParameterPtr& parameter : {w.weight, w.bias}) {
    if (parameter && !parameter->is_frozen()) parameters.push_back(parameter);
  }
  return parameters;
}

/// Checks the loss's gradient; on a device without waiting for it: the device's next operations fail.
void check_starts_at_loss(const Tensor& gradient) {
  if (!gradient.is_cpu()) return at::_assert_async(gradient.eq(1));
  const double factor = gradient.item<double>();
  TORCH_CHECK_VALUE(factor == 1,
                    "linear_cross_entropy: backward starts at the loss, whose gradient is 1; got ", factor,
                    "; divide by LossOptions::valid_tokens instead [SW0722]");
}

template <parallel::ColumnInput In>
struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy<In>> {
  /// Weight and bias are parameters only so that autograd sees them; the code uses those in `head`.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& /*weight*/,
                        const std::optional<Tensor>& /*bias*/, const Head& head) {
    const LossAndGradient result = run<In>(x, head, gradients_of(x, head));
    std::vector<ParameterPtr> parameters = trained(head.w);
    for (const ParameterPtr& parameter : parameters) parallel::expect_backward_(*parameter);
    context->save_for_backward({result.dx});
    parallel::save_state(context, std::move(parameters));
    return result.loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    check_starts_at_loss(gradients[0]);
    for (const ParameterPtr& parameter : parallel::saved_state<std::vector<ParameterPtr>>(context))
      parallel::finish_backward_(*parameter);
    return {context->get_saved_variables()[0], Tensor(), Tensor(), Tensor()};
  }
};

void check_shapes(const Tensor& x, const Tensor& labels, int64_t local_rows, const Parameter& weight,
                  const Step& step) {
  TORCH_CHECK_VALUE(x.dim() == 3 && x.size(0) == local_rows && x.size(2) == weight.size(1), weight.name,
                    ": the loss's input must be [", local_rows, ", b, ", weight.size(1), "]; got ", x.sizes(),
                    " [SW0723]");
  TORCH_CHECK_VALUE(
      labels.dim() == 2 && labels.size(0) == step.sequence.size() && labels.size(1) == x.size(1),
      "linear_cross_entropy: labels must be [", step.sequence.size(), ", ", x.size(1), "]; got ",
      labels.sizes(), " [SW0724]");
}

template <parallel::ColumnInput In>
Tensor value_of(const Tensor& x, const Head& head) {
  const std::optional<Tensor> bias = parallel::leaf_of(head.w.bias);
  if (!parallel::needs_gradient(x, head.w.weight->value, bias.value_or(Tensor())))
    return run<In>(x, head, {}).loss;
  parallel::check_trainable(*head.w.weight);
  return LinearCrossEntropy<In>::apply(x, head.w.weight->value, bias, head);
}

}  // namespace

template <parallel::ColumnInput In>
Placed<Invariant> linear_cross_entropy(const Placed<In>& x, const ColumnParallelLinear& head,
                                       const Tensor& labels, const LossOptions& options, const Step& step,
                                       const Observer* observer) {
  const bool is_sharded = std::same_as<In, Sharded<kSequence>>;
  const int64_t rows = is_sharded ? step.local_sequence().size() : step.sequence.size();
  const LinearParameters w{head.weight(), head.bias()};
  const Tensor input = x.local().contiguous();
  check_shapes(input, labels, rows, *w.weight, step);
  const Tensor value =
      value_of<In>(input, {w, LossOfBatch::make(labels, head.output_split(), options, step), step, observer});
  parallel::verify_equal(value, "the loss", step);
  return Placed<Invariant>(value);
}

template Placed<Invariant> linear_cross_entropy(const Placed<Invariant>&, const ColumnParallelLinear&,
                                                const Tensor&, const LossOptions&, const Step&,
                                                const Observer*);
template Placed<Invariant> linear_cross_entropy(const Placed<Sharded<kSequence>>&,
                                                const ColumnParallelLinear&, const Tensor&,
                                                const LossOptions&, const Step&, const Observer*);
template Placed<Invariant> linear_cross_entropy(const Placed<Replicated>&, const ColumnParallelLinear&,
                                                const Tensor&, const LossOptions&, const Step&,
                                                const Observer*);

}  // namespace shardwise::nn
