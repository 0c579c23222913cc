// The MLPs of a block: a column-parallel layer, an activation on each rank's features, a row-parallel layer.
#pragma once
#include "shardwise/kernels/gelu.h"
#include "shardwise/kernels/swiglu.h"
#include "shardwise/nn/linear.h"
#include "shardwise/nn/one_of.h"

namespace shardwise::nn {

using parallel::OutputUse;

/// Returns silu(gate)·up. Shapes: `gate_up` [s, b, 2f/t] S<−1> → [s, b, f/t] S<−1>. Saved: gate_up.
Placed<Sharded<kFeature>> swiglu(const Placed<Sharded<kFeature>>& gate_up);

/// Returns gelu(x + bias). `bias` [f/t]: of a column-parallel layer called without_bias; may be null.
/// Shapes: `x` [s, b, f/t] S<−1> → the same. Backward: also adds the bias gradient. Saved: x.
Placed<Sharded<kFeature>> gelu(const Placed<Sharded<kFeature>>& x, const ParameterPtr& bias,
                               kernels::Gelu form);

/// Returns a recipe for the input `y` of the down projection under selective recomputation: activate(x),
/// where the activation saves `x` anyway. Returns an empty recipe without selective recomputation, or if `y`
/// needs no gradient, because then the activation saves nothing.
parallel::RecomputeInput recompute_input(const Placed<Sharded<kFeature>>& y,
                                         const Placed<Sharded<kFeature>>& x,
                                         std::function<at::Tensor(const at::Tensor&)> activate,
                                         const Step& step);

/// A gated MLP, down(silu(gate x) · up x), with gate and up fused into one product. Source: Shazeer 2020
/// (SwiGLU).
class GatedMlp {
 public:
  /// Builds the MLP from its two products; `gate_up` has the segments gate and up.
  GatedMlp(ColumnParallelLinear gate_up, RowParallelLinear down)
      : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

  /// Returns the output of the MLP branch for its normalized input `x`, to be added to the residual stream.
  /// Shapes: `x` [s, b, h] I or R → [s, b, h] I; [s/t, b, h] S<0> → the same.
  template <parallel::ColumnInput In>
  auto operator()(const Placed<In>& x, const Step& step, OutputUse use = OutputUse::needed) const {
    const auto gate_up = gate_up_(x, step);
    const auto inner = swiglu(gate_up);
    return down_.to_residual<In>(inner, step, {use, recompute_input(inner, gate_up, kernels::swiglu, step)});
  }

  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const {
    gate_up_.append_parameters(parameters);
    down_.append_parameters(parameters);
  }

 private:
  ColumnParallelLinear gate_up_;
  RowParallelLinear down_;
};

/// An MLP with GeLU, down(gelu(up x)), whose activation kernel adds the bias of up. Source: Radford et al.
/// 2018 (GPT).
class GeluMlp {
 public:
  /// Builds the MLP from its two products and the form of its GeLU.
  GeluMlp(ColumnParallelLinear up, RowParallelLinear down, kernels::Gelu form)
      : up_(std::move(up)), down_(std::move(down)), form_(form) {}

  /// Returns the output of the MLP branch for its normalized input `x`, to be added to the residual stream.
  /// Shapes: `x` [s, b, h] I or R → [s, b, h] I; [s/t, b, h] S<0> → the same.
  template <parallel::ColumnInput In>
  auto operator()(const Placed<In>& x, const Step& step, OutputUse use = OutputUse::needed) const {
    const auto up = up_.without_bias(x, step);
    const auto activate = [bias = up_.bias(), form = form_](const at::Tensor& from) {
      return kernels::gelu(from, bias ? bias->value.detach() : at::Tensor(), form);
    };
    const auto inner = gelu(up, up_.bias(), form_);
    return down_.to_residual<In>(inner, step, {use, recompute_input(inner, up, activate, step)});
  }

  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const {
    up_.append_parameters(parameters);
    down_.append_parameters(parameters);
  }

 private:
  ColumnParallelLinear up_;
  RowParallelLinear down_;
  kernels::Gelu form_;
};

/// The MLP of a block.
using Mlp = OneOf<GatedMlp, GeluMlp>;

}  // namespace shardwise::nn
