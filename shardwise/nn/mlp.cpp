#include "shardwise/nn/mlp.h"

#include "shardwise/kernels/gelu.h"
#include "shardwise/kernels/swiglu.h"
#include "shardwise/parallel/node.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static Tensor forward(AutogradContext* context, const Tensor& gate_up) {
    context->save_for_backward({gate_up});
    return kernels::swiglu(gate_up);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {kernels::swiglu_backward(gradients[0].contiguous(), context->get_saved_variables()[0])};
  }
};

struct BiasGelu : torch::autograd::Function<BiasGelu> {
  struct Activation {
    ParameterPtr bias;  // may be null
    kernels::Gelu form;

    Tensor bias_value() const { return bias ? bias->value.detach() : Tensor(); }
  };

  static Tensor forward(AutogradContext* context, const Tensor& x, const std::optional<Tensor>&,
                        Activation activation) {
    context->save_for_backward({x});
    Tensor y = kernels::gelu(x, activation.bias_value(), activation.form);
    parallel::save_state(context, std::move(activation));
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Activation& activation = parallel::saved_state<Activation>(context);
    const Tensor bias_gradient = activation.bias ? activation.bias->main_grad_if_trainable() : Tensor();
    const Tensor dx = kernels::gelu_backward(gradients[0].contiguous(), context->get_saved_variables()[0],
                                             activation.bias_value(), activation.form, bias_gradient);
    return {dx, Tensor(), Tensor()};
  }
};

}  // namespace

Placed<Sharded<kFeature>> swiglu(const Placed<Sharded<kFeature>>& gate_up) {
  const Tensor x = gate_up.local().contiguous();
  return Placed<Sharded<kFeature>>(parallel::needs_gradient(x) ? SwiGlu::apply(x) : kernels::swiglu(x));
}

Placed<Sharded<kFeature>> gelu(const Placed<Sharded<kFeature>>& x, const ParameterPtr& bias,
                               kernels::Gelu form) {
  const Tensor input = x.local().contiguous();
  const std::optional<Tensor> leaf = parallel::leaf_of(bias);
  if (!parallel::needs_gradient(input, leaf.value_or(Tensor())))
    return Placed<Sharded<kFeature>>(kernels::gelu(input, leaf.value_or(Tensor()), form));
  return Placed<Sharded<kFeature>>(BiasGelu::apply(input, leaf, BiasGelu::Activation{bias, form}));
}

parallel::RecomputeInput recompute_input(const Placed<Sharded<kFeature>>& y,
                                         const Placed<Sharded<kFeature>>& x,
                                         std::function<Tensor(const Tensor&)> activate, const Step& step) {
  if (step.recompute != base::Recompute::selective || !y.local().requires_grad()) return {};
  return {x.local(), std::move(activate)};
}

}  // namespace shardwise::nn
