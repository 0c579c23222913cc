// Gated MLP: gate|up is one product and one crossing in, down one crossing out. Source: Shazeer 2020
// (SwiGLU).
#pragma once
#include "shardwise/nn/linear.h"

namespace shardwise::nn {

/// silu(gate)·up of each rank's own columns. `gate_up` [s, b, 2f/t] → [s, b, f/t]. Saved: gate_up.
Placed<Sharded<kFeature>> swiglu(const Placed<Sharded<kFeature>>& gate_up);

class GatedMlp {
 public:
  GatedMlp(ColumnParallelLinear gate_up, RowParallelLinear down)
      : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

  /// The stream in, the stream out: [s, b, h] → the same shape and placement.
  template <ResidualStream Stream>
  Placed<Stream> operator()(const Placed<Stream>& x, const Step& step) const {
    return down_.to<Stream>(swiglu(gate_up_(x, step)), step);
  }

  void append_roles(Roles& roles) const {
    gate_up_.append_roles(roles);
    down_.append_roles(roles);
  }

 private:
  ColumnParallelLinear gate_up_;
  RowParallelLinear down_;
};

}  // namespace shardwise::nn
