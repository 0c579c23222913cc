#include "shardwise/nn/mlp.h"

#include "shardwise/kernels/swiglu.h"
#include "shardwise/parallel/node.h"

namespace shardwise::nn {

using at::Tensor;

namespace {

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static Tensor forward(parallel::AutogradContext* context, const Tensor& gate_up) {
    context->save_for_backward({gate_up});
    return kernels::swiglu(gate_up);
  }

  static parallel::variable_list backward(parallel::AutogradContext* context,
                                          parallel::variable_list gradients) {
    return {kernels::swiglu_backward(gradients[0].contiguous(), context->get_saved_variables()[0])};
  }
};

}  // namespace

Placed<Sharded<kFeature>> swiglu(const Placed<Sharded<kFeature>>& gate_up) {
  const Tensor x = gate_up.local().contiguous();
  return Placed<Sharded<kFeature>>(parallel::needs_gradient(x) ? SwiGlu::apply(x) : kernels::swiglu(x));
}

}  // namespace shardwise::nn
