// Norms on the residual stream: rows are independent, so they work on whole and on sequence-sharded streams
// alike.
#pragma once
#include "shardwise/nn/one_of.h"
#include "shardwise/nn/residual.h"
#include "shardwise/parallel/add_norm.h"

namespace shardwise::nn {

/// Where a norm of the stream is written: a shard feeds a crossing, so peers must be able to read it.
template <ResidualStream Stream>
comm::Group memory_for(const Step& step) {
  return std::is_same_v<Stream, Sharded<kSequence>> ? step.group : comm::Group();
}

using parallel::Normed;

template <class Layer, ResidualStream Stream>
Normed<Stream> normed(const Layer& norm, Residual<Stream> x, const Step& step) {
  const Placed<Stream> taken = std::move(x).taken(step);
  return {taken, norm(taken, step)};
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

  /// The stream, and its norm; a sum that was left is taken here, in one pass.
  template <ResidualStream Stream>
  Normed<Stream> operator()(Residual<Stream> x, const Step& step) const {
    if (!x.left) return normed(*this, std::move(x), step);
    return parallel::add_rms_norm(x.x, *std::move(x.left), {weight_->value, eps_}, step);
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

  /// The stream, and its norm; a sum that was left is taken first.
  template <ResidualStream Stream>
  Normed<Stream> operator()(Residual<Stream> x, const Step& step) const {
    return normed(*this, std::move(x), step);
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
