#include "shardwise/parallel/async_conjugate.h"

#include <utility>

#include "shardwise/kernels/grad.h"
#include "shardwise/parallel/conjugate.h"
#include "shardwise/parallel/gathered_rows.h"
#include "shardwise/parallel/node.h"
#include "shardwise/parallel/verify.h"

namespace shardwise::parallel {

using at::Tensor;

namespace {

/// Starts the all_reduce of `x`, in place. Returns null if it is complete already.
std::unique_ptr<comm::Work> start_all_reduce_(Tensor x, const Step& step) {
  if (step.overlap == Overlap::on) return step.group.all_reduce_async_(x);
  step.group.all_reduce_(x);
  return nullptr;
}

Tensor wait_and_add_bias(const Tensor& y, const std::shared_ptr<comm::Work>& work, const ParameterPtr& bias) {
  if (work) work->wait();
  Tensor sum = y.detach();  // PendingReduction owns y exclusively
  if (bias) sum.add_(bias->value.detach());
  return sum;
}

struct WaitNode : torch::autograd::Function<WaitNode> {
  struct Saved {
    ParameterPtr bias;
    Step step;
  };

  /// The bias is a parameter only so that autograd sees it; the code uses the one in `saved`.
  static Tensor forward(AutogradContext* context, const Tensor& y, const std::optional<Tensor>& /*bias*/,
                        const std::shared_ptr<comm::Work>& work, Saved saved) {
    Tensor sum = wait_and_add_bias(y, work, saved.bias);
    save_state(context, std::move(saved));
    return sum;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Saved& saved = saved_state<Saved>(context);
    const Tensor dy = gradients[0].contiguous();
    verify_equal(dy, "a row-parallel layer's output gradient", saved.step);
    Tensor gradient = saved.bias ? saved.bias->main_grad_if_trainable() : Tensor();
    if (gradient.defined()) kernels::add_bias_grad_(gradient, as_matrix(dy));
    return {dy, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Placed<Replicated> enter_async(const Placed<Invariant>& x, const Step& step, uint64_t wait_at) {
  verify_equal(x.local(), "a column-parallel layer's input", step);
  if (!needs_gradient(x.local())) return Placed<Replicated>(x.local());
  const auto in_flight = std::make_shared<std::unique_ptr<comm::Work>>();
  const Tensor waiting = conjugate(x.local(), identity, [in_flight](const Tensor& dx) {
    if (*in_flight) std::exchange(*in_flight, nullptr)->wait();
    return dx;
  });
  waiting.grad_fn()->set_sequence_nr(wait_at);
  // Only this node reads the dx that the product computes, so it may be reduced in place.
  return Placed<Replicated>(conjugate(waiting, identity, [in_flight, step](const Tensor& dx) {
    *in_flight = start_all_reduce_(dx, step);
    return dx;
  }));
}

LeaveAsync::LeaveAsync(PendingReduction pending, const Step& step)
    : pending_(std::move(pending)),
      step_(step),
      work_(start_all_reduce_(pending_.y.local().detach(), step)) {}

Placed<Invariant> LeaveAsync::wait() {
  const Tensor& y = pending_.y.local();
  const std::optional<Tensor> bias = leaf_of(pending_.bias);
  if (!needs_gradient(y, bias.value_or(Tensor())))
    return Placed<Invariant>(wait_and_add_bias(y, work_, pending_.bias));
  return Placed<Invariant>(WaitNode::apply(y, bias, work_, WaitNode::Saved{pending_.bias, step_}));
}

}  // namespace shardwise::parallel
