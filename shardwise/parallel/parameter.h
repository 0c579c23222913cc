// A parameter's local slice with its rule, and how its gradient must be treated over a mesh axis.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/comm/group.h"
#include "shardwise/kernels/random.h"
#include "shardwise/quant/matrix.h"

namespace shardwise::parallel {

/// What an element is drawn from; drawn for the unsharded tensor and sliced, so equal at every tp size.
struct Init {
  enum class Kind { normal, uniform, constant } kind = Kind::normal;
  double scale = 0.02;  // standard deviation, bound of (−bound, bound), or the constant

  static Init normal(double std) { return {Kind::normal, std}; }
  /// Kaiming uniform with a = sqrt 5, as torch.nn.Linear: bound 1/sqrt(fan_in) of the whole weight.
  static Init kaiming_uniform(int64_t fan_in);
  static Init constant(double value) { return {Kind::constant, value}; }
};

/// Shapes: `value` and `main_grad` are the local slice, rule.local_shape(global_shape, rank). A quantized
/// weight has `quantized` in place of `value`, which stays undefined: it is frozen, and multiplied by alone.
/// It holds no placement: what its gradient is depends on the stream it was used with (see ParamSpec).
struct Parameter {
  std::string name;  // Hugging Face's; a fused one as layers.0.self_attn.qkv_proj.weight
  std::vector<int64_t> global_shape;
  base::ShardRule rule;
  Init init;
  at::Tensor value;      // a leaf; requires grad unless frozen
  at::Tensor main_grad;  // fp32 (fp64 for fp64); undefined until zero_grad_, and when frozen
  std::shared_ptr<quant::Matrix> quantized = nullptr;

  int64_t global_numel() const;
  /// Of the local slice.
  int64_t size(int64_t dim) const;
  /// Of the local slice, with scales and zeros.
  int64_t bytes() const;
  bool is_frozen() const { return quantized || !value.requires_grad(); }
  /// What backward adds to: main_grad, or undefined when frozen. Errors: c10::ValueError before zero_grad_.
  at::Tensor main_grad_if_trainable() const;
};
using ParameterPtr = std::shared_ptr<Parameter>;

/// What an autograd node takes of a parameter that a layer may lack: its value, or nothing.
std::optional<at::Tensor> leaf_of(const ParameterPtr& parameter);

/// Allocates the local slice, uninitialized.
ParameterPtr make_parameter(std::string name, std::vector<int64_t> global_shape, base::ShardRule rule,
                            Init init, const comm::Group& group, at::ScalarType dtype);

/// The same of a weight [out, in] in codes; `rule` cuts rows, or columns as one segment.
ParameterPtr make_quantized_parameter(std::string name, std::vector<int64_t> global_shape,
                                      base::ShardRule rule, const quant::Format& format,
                                      const comm::Group& group);

/// Draws the slice from `key` and the parameter's name. Errors: c10::ValueError for a quantized weight.
void initialize_(Parameter& parameter, kernels::RandomKey key, const comm::Group& group);

/// No gradient from now on: none is computed, synchronized, counted or kept. The same on every rank.
void freeze_(Parameter& parameter);

/// Zeroes main_grad, allocating it first if need be; nothing when frozen.
void zero_grad_(Parameter& parameter);

/// Over one mesh axis, what each rank's main_grad is.
enum class GradientKind {
  sharded,    // its slice's; slices held twice (KV replicas) are summed over their holders
  invariant,  // already the same on every rank
  partial,    // a term: summed over the axis
};

/// A parameter as the optimizer's loops see it. Axes other than tp join the list when they come.
struct ParamSpec {
  struct OverAxis {
    std::string axis;
    GradientKind gradient;
  };
  ParameterPtr parameter;
  std::vector<OverAxis> axes;

  static ParamSpec over_tp(ParameterPtr parameter, GradientKind gradient) {
    return {std::move(parameter), {{"tp", gradient}}};
  }
  GradientKind gradient_over(const std::string& axis) const;
};
using ParamSpecs = std::vector<ParamSpec>;

}  // namespace shardwise::parallel
