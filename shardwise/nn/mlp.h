// The two-layer perceptrons of a block: one crossing in, something elementwise on each rank's own columns,
// one crossing out.
#pragma once
#include "shardwise/kernels/gelu.h"
#include "shardwise/kernels/swiglu.h"
#include "shardwise/nn/linear.h"
#include "shardwise/nn/one_of.h"

namespace shardwise::nn {

using parallel::OutputUse;

/// silu(gate)·up of each rank's own columns. `gate_up` [s, b, 2f/t] → [s, b, f/t]. Saved: gate_up.
Placed<Sharded<kFeature>> swiglu(const Placed<Sharded<kFeature>>& gate_up);

/// gelu(x + bias) of each rank's own columns; `bias` is what a column-parallel layer left out, or null.
/// `x` [s, b, f/t] → the same. Backward adds the bias's gradient too. Saved: x.
Placed<Sharded<kFeature>> gelu(const Placed<Sharded<kFeature>>& x, const ParameterPtr& bias,
                               kernels::Gelu form);

/// Under selective recomputation, how `down` gets its input `y` back: activate(x), of a tensor that the
/// activation keeps in any case (when y needs no gradient it keeps none, and the input stays).
parallel::RecomputeInput recompute_input(const Placed<Sharded<kFeature>>& y,
                                         const Placed<Sharded<kFeature>>& x,
                                         std::function<at::Tensor(const at::Tensor&)> activate,
                                         const Step& step);

/// down(silu(gate x) · up x), gate|up one product. Source: Shazeer 2020 (SwiGLU).
class GatedMlp {
 public:
  GatedMlp(ColumnParallelLinear gate_up, RowParallelLinear down)
      : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

  /// What the MLP adds to the residual stream, of its normalized input: [s, b, h] → the same shape and
  /// placement.
  template <parallel::ColumnInput In>
  auto operator()(const Placed<In>& x, const Step& step, OutputUse use = OutputUse::needed) const {
    const auto gate_up = gate_up_(x, step);
    const auto inner = swiglu(gate_up);
    return down_.to_residual<In>(inner, step, {use, recompute_input(inner, gate_up, kernels::swiglu, step)});
  }

  void append_parameters(UsedParameters& roles) const {
    gate_up_.append_parameters(roles);
    down_.append_parameters(roles);
  }

 private:
  ColumnParallelLinear gate_up_;
  RowParallelLinear down_;
};

/// down(gelu(up x)), up's bias added by the activation. Source: Radford et al. 2018 (GPT).
class GeluMlp {
 public:
  GeluMlp(ColumnParallelLinear up, RowParallelLinear down, kernels::Gelu form)
      : up_(std::move(up)), down_(std::move(down)), form_(form) {}

  /// What the MLP adds to the residual stream, of its normalized input: [s, b, h] → the same shape and
  /// placement.
  template <parallel::ColumnInput In>
  auto operator()(const Placed<In>& x, const Step& step, OutputUse use = OutputUse::needed) const {
    const auto up = up_.without_bias(x, step);
    const auto activate = [bias = up_.bias(), form = form_](const at::Tensor& from) {
      return kernels::gelu(from, bias ? bias->value.detach() : at::Tensor(), form);
    };
    const auto inner = gelu(up, up_.bias(), form_);
    return down_.to_residual<In>(inner, step, {use, recompute_input(inner, up, activate, step)});
  }

  void append_parameters(UsedParameters& roles) const {
    up_.append_parameters(roles);
    down_.append_parameters(roles);
  }

 private:
  ColumnParallelLinear up_;
  RowParallelLinear down_;
  kernels::Gelu form_;
};

using Mlp = OneOf<GatedMlp, GeluMlp>;

}  // namespace shardwise::nn
