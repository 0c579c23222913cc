#include "shardwise/nn/norm.h"

#include <ATen/ops/empty.h>

#include "shardwise/kernels/rms_norm.h"
#include "shardwise/parallel/node.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

struct Normalised {
  Tensor y, rstd;
};

Normalised rms_norm(const Tensor& x, const Tensor& weight, double eps, const comm::Group& memory) {
  const at::ScalarType statistics = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Normalised result{memory.empty(x.sizes(), x.scalar_type()),
                    at::empty(x.sizes().slice(0, x.dim() - 1), at::TensorOptions(statistics))};
  kernels::rms_norm_out(result.y, result.rstd, x, weight, eps);
  return result;
}

struct RmsNormNode : torch::autograd::Function<RmsNormNode> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        ParameterPtr parameter, double eps, const comm::Group& memory) {
    Normalised result = rms_norm(x, weight, eps, memory);
    context->save_for_backward({x, result.rstd});
    parallel::keep(context, std::move(parameter));
    return result.y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Parameter& weight = *parallel::kept<ParameterPtr>(context);
    const variable_list saved = context->get_saved_variables();
    const Tensor weight_grad = weight.value.requires_grad() ? weight.main_grad : Tensor();
    const Tensor dx = kernels::rms_norm_backward(gradients[0].contiguous(), saved[0], weight.value.detach(),
                                                 saved[1], weight_grad);
    return {dx, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

RMSNorm::RMSNorm(const std::string& name, int64_t hidden_size, double eps, const comm::Group& group,
                 at::ScalarType dtype)
    : weight_(parallel::make_parameter(name + ".weight", {hidden_size}, base::ShardRule::replicated(),
                                       parallel::Init::constant(1), group, dtype)),
      eps_(eps) {}

Tensor RMSNorm::normalise(const Tensor& x, const comm::Group& memory) const {
  const Tensor input = x.contiguous();
  if (!parallel::needs_gradient(input, weight_->value))
    return rms_norm(input, weight_->value, eps_, memory).y;
  return RmsNormNode::apply(input, weight_->value, weight_, eps_, memory);
}

}  // namespace shardwise::nn
