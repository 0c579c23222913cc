#include "shardwise/parallel/recompute.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>

#include "shardwise/parallel/node.h"

namespace shardwise::parallel::detail {

using at::Tensor;

namespace {

/// Builds the graph of `forward` over `x` and runs it backward from `dy`. The engine is entered a second time
/// on the thread that called backward, which runs the inner graph to its end first: ranks that are threads of
/// one process never meet in it. The forward's value is dropped before.
void backward_again(const Forward& forward, const Tensor& x, const Tensor& dy) {
  torch::autograd::Edge end;
  {
    const at::AutoGradMode with_graph(true);
    end = torch::autograd::impl::gradient_edge(forward(x, OutputUse::discarded));
  }
  torch::autograd::Engine::get_default_engine().execute({end}, {dy}, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

struct Recomputed : torch::autograd::Function<Recomputed> {
  /// The second, a tensor that is trained, makes autograd want this node when x needs no gradient itself.
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor&, Forward forward) {
    Tensor y = forward(x, OutputUse::needed);  // makes no graph: autograd is off in here
    context->save_for_backward({x});
    keep(context, std::move(forward));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const bool needs_dx = context->needs_input_grad(0);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_(needs_dx);
    backward_again(kept<Forward>(context), x, gradients[0]);
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
