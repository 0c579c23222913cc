// Norms on the residual stream: rows are independent, so they work on whole and on sequence-sharded streams
// alike.
#pragma once
#include "shardwise/nn/one_of.h"

namespace shardwise::nn {

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
    return Placed<Stream>(normalise(x.local(), memory_for<Stream>(step)));
  }

  void append_roles(Roles& roles) const { roles.push_back({weight_, WorksOn::stream}); }

 private:
  /// The result is allocated from `memory`; a group of one gives ordinary memory.
  at::Tensor normalise(const at::Tensor& x, const comm::Group& memory) const;
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
    return Placed<Stream>(normalise(x.local(), memory_for<Stream>(step)));
  }

  void append_roles(Roles& roles) const {
    roles.push_back({weight_, WorksOn::stream});
    roles.push_back({bias_, WorksOn::stream});
  }

 private:
  at::Tensor normalise(const at::Tensor& x, const comm::Group& memory) const;
  ParameterPtr weight_, bias_;
  double eps_;
};

using Norm = OneOf<RMSNorm, LayerNorm>;

}  // namespace shardwise::nn
