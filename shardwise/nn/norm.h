// RMSNorm on the residual stream: rows are independent, so it works on whole and on sequence-sharded streams
// alike.
#pragma once
#include "shardwise/nn/module.h"
#include "shardwise/nn/step.h"

namespace shardwise::nn {

class RMSNorm {
 public:
  RMSNorm(const std::string& name, int64_t hidden_size, double eps, const comm::Group& group,
          at::ScalarType dtype);

  /// `x` [s, b, h] → the same shape and placement; a shard is written where peers can read it, for it feeds
  /// a crossing.
  /// Saved: x and its fp32 1/rms per row. Source: Zhang & Sennrich 2019, eq. 4.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    const bool is_read_by_peers = std::is_same_v<Stream, Sharded<kSequence>>;
    return Placed<Stream>(normalise(x.local(), is_read_by_peers ? step.group : comm::Group()));
  }

  void append_roles(Roles& roles) const { roles.push_back({weight_, WorksOn::stream}); }

 private:
  /// The result is allocated from `memory`; a group of one gives ordinary memory.
  at::Tensor normalise(const at::Tensor& x, const comm::Group& memory) const;
  ParameterPtr weight_;
  double eps_;
};

}  // namespace shardwise::nn
