#include "shardwise/nn/norm.h"

#include <ATen/ops/empty.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/layer_norm.h"
#include "shardwise/kernels/rms_norm.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/parallel/node.h"

namespace shardwise::nn {

using at::Tensor;
using parallel::AutogradContext;
using parallel::variable_list;

namespace {

ParameterPtr make_norm_parameter(const std::string& name, int64_t hidden_size, double value,
                                 const comm::Group& group, at::ScalarType dtype) {
  return parallel::make_parameter(name, {hidden_size}, base::ShardRule::replicated(),
                                  parallel::Init::constant(value), group, dtype);
}

/// Allocates one value per row of `x`, fp32 or fp64.
Tensor empty_statistic(const Tensor& x) {
  return at::empty(kernels::row_shape(x), x.options().dtype(kernels::accumulator_type(x.scalar_type())));
}

struct Normalized {
  Tensor y, rstd;
};

Normalized rms_norm(const Tensor& x, const Tensor& weight, double eps, const comm::Group& memory) {
  Normalized result{memory.empty(x.sizes(), x.scalar_type()), empty_statistic(x)};
  kernels::rms_norm_out(result.y, result.rstd, x, weight, eps);
  return result;
}

struct RmsNormNode : torch::autograd::Function<RmsNormNode> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        ParameterPtr parameter, double eps, const comm::Group& memory) {
    Normalized result = rms_norm(x, weight, eps, memory);
    context->save_for_backward({x, result.rstd});
    parallel::save_state(context, std::move(parameter));
    return result.y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Parameter& weight = *parallel::saved_state<ParameterPtr>(context);
    base::enter_part(weight.name);
    const variable_list saved = context->get_saved_variables();
    const Tensor dx = kernels::rms_norm_backward(gradients[0].contiguous(), saved[0], weight.value.detach(),
                                                 saved[1], weight.main_grad_if_trainable());
    return {dx, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct AffineParameters {
  ParameterPtr weight, bias;
};

struct Centered {
  Tensor y;
  kernels::RowMoments moments;
};

Centered layer_norm(const Tensor& x, const AffineParameters& affine, double eps, const comm::Group& memory) {
  Centered result{memory.empty(x.sizes(), x.scalar_type()), {empty_statistic(x), empty_statistic(x)}};
  kernels::layer_norm_out(result.y, result.moments, x, {affine.weight->value, affine.bias->value}, eps);
  return result;
}

struct LayerNormNode : torch::autograd::Function<LayerNormNode> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor&, const Tensor&,
                        AffineParameters affine, double eps, const comm::Group& memory) {
    Centered result = layer_norm(x, affine, eps, memory);
    context->save_for_backward({x, result.moments.mean, result.moments.rstd});
    parallel::save_state(context, std::move(affine));
    return result.y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& [weight, bias] = parallel::saved_state<AffineParameters>(context);
    base::enter_part(weight->name);
    const variable_list saved = context->get_saved_variables();
    const Tensor dx = kernels::layer_norm_backward(
        gradients[0].contiguous(), saved[0], weight->value.detach(), {saved[1], saved[2]},
        {weight->main_grad_if_trainable(), bias->main_grad_if_trainable()});
    return {dx, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

RMSNorm::RMSNorm(const std::string& name, int64_t hidden_size, double eps, const comm::Group& group,
                 at::ScalarType dtype)
    : weight_(make_norm_parameter(name + ".weight", hidden_size, 1, group, dtype)), eps_(eps) {}

void RMSNorm::enter() const {
  base::enter_part(weight_->name);
}

Tensor RMSNorm::normalize(const Tensor& x, const comm::Group& memory) const {
  enter();
  const Tensor input = x.contiguous();
  if (!parallel::needs_gradient(input, weight_->value))
    return rms_norm(input, weight_->value, eps_, memory).y;
  return RmsNormNode::apply(input, weight_->value, weight_, eps_, memory);
}

LayerNorm::LayerNorm(const std::string& name, int64_t hidden_size, double eps, const comm::Group& group,
                     at::ScalarType dtype)
    : weight_(make_norm_parameter(name + ".weight", hidden_size, 1, group, dtype)),
      bias_(make_norm_parameter(name + ".bias", hidden_size, 0, group, dtype)),
      eps_(eps) {}

Tensor LayerNorm::normalize(const Tensor& x, const comm::Group& memory) const {
  base::enter_part(weight_->name);
  const Tensor input = x.contiguous();
  const AffineParameters affine{weight_, bias_};
  if (!parallel::needs_gradient(input, weight_->value, bias_->value))
    return layer_norm(input, affine, eps_, memory).y;
  return LayerNormNode::apply(input, weight_->value, bias_->value, affine, eps_, memory);
}

}  // namespace shardwise::nn
