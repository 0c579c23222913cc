#include "shardwise/parallel/recompute.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>

#include "shardwise/parallel/node.h"

namespace shardwise::parallel::detail {

using at::Tensor;

namespace {

/// Records the graph of `forward` over `x`, releases its output and runs the graph backward from `dy`. The
/// nested call of the engine stays on the thread that called backward and completes the inner graph first, so
/// ranks that are threads of one process do not share an engine queue.
void recompute_and_backward(const Forward& forward, const Tensor& x, const Tensor& dy) {
  torch::autograd::Edge end;
  {
    const at::AutoGradMode with_graph(true);
    end = torch::autograd::impl::gradient_edge(forward(x, OutputUse::discarded));
  }
  torch::autograd::Engine::get_default_engine().execute({end}, {dy}, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

struct Recomputed : torch::autograd::Function<Recomputed> {
  /// The second tensor requires a gradient if a parameter is trained, so that the node is recorded even if x
  /// needs no gradient.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor&, Forward forward) {
    Tensor y = forward(x, OutputUse::needed);  // records no graph: gradients are disabled here
    context->save_for_backward({x});
    save_state(context, std::move(forward));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const bool needs_dx = context->needs_input_grad(0);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_(needs_dx);
    recompute_and_backward(saved_state<Forward>(context), x, gradients[0]);
    return {needs_dx ? x.grad() : Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor recomputed(const Tensor& x, bool is_trained, Forward forward) {
  if (!at::GradMode::is_enabled() || !(is_trained || x.requires_grad())) return forward(x, OutputUse::needed);
  const Tensor trained = at::empty({0}, x.options()).requires_grad_(is_trained);
  return Recomputed::apply(x, trained, std::move(forward));
}

}  // namespace shardwise::parallel::detail
