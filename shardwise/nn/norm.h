// Norms on the residual stream: rows are independent, so they work on whole and on sequence-sharded streams
// alike.
#pragma once
#include "shardwise/nn/one_of.h"
#include "shardwise/nn/step.h"
#include "shardwise/parallel/deferred_reduction.h"

namespace shardwise::nn {

using parallel::DeferredReduction;

/// Where a norm of the stream is written: a shard feeds a crossing, so peers must be able to read it.
template <ResidualStream Stream>
comm::Group memory_for(const Step& step) {
  return std::is_same_v<Stream, Sharded<kSequence>> ? step.group : comm::Group();
}

class RMSNorm {
 public:
  RMSNorm(const std::string& name, int64_t hidden_size, double eps, const comm::Group& group,
          at::ScalarType dtype);

  /// `x` [s, b, h] → the same shape and placement. Saved: x and its fp32 1/rms per row.
  /// Source: Zhang & Sennrich 2019, eq. 4.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return Placed<Stream>(normalize(x.local(), memory_for<Stream>(step)));
  }

  /// The norm of `x`, whose pending reduction it performs in the same pass.
  template <ResidualStream Stream>
  Placed<Stream> operator()(DeferredReduction<Stream>& x, const Step& step) const {
    if (!x.pending) return (*this)(*x.value, step);
    return parallel::reduce_and_rms_norm(x, {weight_->value, eps_}, step);
  }

  void append_parameters(UsedParameters& roles) const {
    roles.push_back({weight_, ParameterUse::on_residual});
  }

 private:
  /// The result is allocated from `memory`; a group of one gives ordinary memory.
  at::Tensor normalize(const at::Tensor& x, const comm::Group& memory) const;
  ParameterPtr weight_;
  double eps_;
};

class LayerNorm {
 public:
  /// Weight one and bias zero until they are loaded.
  LayerNorm(const std::string& name, int64_t hidden_size, double eps, const comm::Group& group,
            at::ScalarType dtype);

  /// `x` [s, b, h] → the same shape and placement. Saved: x and its fp32 mean and 1/std per row.
  /// Source: Ba, Kiros & Hinton 2016, eq. 4.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return Placed<Stream>(normalize(x.local(), memory_for<Stream>(step)));
  }

  /// The norm of `x`, after its pending reduction.
  template <ResidualStream Stream>
  Placed<Stream> operator()(DeferredReduction<Stream>& x, const Step& step) const {
    return (*this)(x.reduced(step), step);
  }

  void append_parameters(UsedParameters& roles) const {
    roles.push_back({weight_, ParameterUse::on_residual});
    roles.push_back({bias_, ParameterUse::on_residual});
  }

 private:
  at::Tensor normalize(const at::Tensor& x, const comm::Group& memory) const;
  ParameterPtr weight_, bias_;
  double eps_;
};

using Norm = OneOf<RMSNorm, LayerNorm>;

}  // namespace shardwise::nn
