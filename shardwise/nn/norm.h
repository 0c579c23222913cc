// Norms on the residual stream. Rows are independent, so the norms communicate nothing under TP and TP+SP.
#pragma once
#include "shardwise/nn/one_of.h"
#include "shardwise/nn/step.h"
#include "shardwise/parallel/deferred_reduction.h"

namespace shardwise::nn {

using parallel::DeferredReduction;

/// Returns the group that allocates a norm's output: the step's, in whose symmetric heap peers can read a
/// sequence shard, or a group of one, which allocates ordinary memory.
template <ResidualStream Stream>
comm::Group memory_for(const Step& step) {
  return std::is_same_v<Stream, Sharded<kSequence>> ? step.group : comm::Group(step.group.device());
}

/// RMSNorm with a weight [h].
class RMSNorm {
 public:
  /// The weight is initialized to 1.
  RMSNorm(const std::string& name, int64_t hidden_size, double eps, const comm::Group& group,
          at::ScalarType dtype);

  /// Normalizes each row of `x` [s, b, h] I or [s/t, b, h] S<0>. Saved: x and an fp32 1/rms per row.
  /// Source: Zhang & Sennrich 2019, eq. 4.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return Placed<Stream>(normalize(x.local(), memory_for<Stream>(step)));
  }

  /// Completes the pending reduction of `x` and normalizes the result, in one pass.
  template <ResidualStream Stream>
  Placed<Stream> operator()(DeferredReduction<Stream>& x, const Step& step) const {
    if (!x.pending) return (*this)(*x.value, step);
    enter();
    return parallel::reduce_and_rms_norm(x, {weight_->value, eps_}, step);
  }

  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const {
    parameters.push_back({weight_, ParameterUse::on_residual});
  }

 private:
  /// `memory`: allocates the result (memory_for).
  at::Tensor normalize(const at::Tensor& x, const comm::Group& memory) const;
  void enter() const;  // for profiles
  ParameterPtr weight_;
  double eps_;
};

/// LayerNorm with a weight and a bias [h].
class LayerNorm {
 public:
  /// The weight is initialized to 1, the bias to 0.
  LayerNorm(const std::string& name, int64_t hidden_size, double eps, const comm::Group& group,
            at::ScalarType dtype);

  /// Normalizes each row of `x` [s, b, h] I or [s/t, b, h] S<0>. Saved: x and an fp32 mean and 1/std per row.
  /// Source: Ba, Kiros & Hinton 2016, eq. 4.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return Placed<Stream>(normalize(x.local(), memory_for<Stream>(step)));
  }

  /// Completes the pending reduction of `x`, then normalizes the result.
  template <ResidualStream Stream>
  Placed<Stream> operator()(DeferredReduction<Stream>& x, const Step& step) const {
    return (*this)(x.reduced(step), step);
  }

  /// Appends the parameters and how they are used.
  void append_parameters(UsedParameters& parameters) const {
    parameters.push_back({weight_, ParameterUse::on_residual});
    parameters.push_back({bias_, ParameterUse::on_residual});
  }

 private:
  at::Tensor normalize(const at::Tensor& x, const comm::Group& memory) const;
  ParameterPtr weight_, bias_;
  double eps_;
};

/// The norm of a block.
using Norm = OneOf<RMSNorm, LayerNorm>;

}  // namespace shardwise::nn
