// Shared by the tests of layers: linear layers with a bias, a rank's rows of the residual stream,
// communication counters.
#pragma once
#include <functional>

#include "shardwise/nn/linear.h"
#include "tests/support/tensors.h"

namespace shardwise::testing {

inline nn::LinearOptions with_bias(int64_t in, int64_t out) {
  nn::LinearOptions options(in, out);
  options.has_bias = true;
  return options;
}

/// Returns a copy of this rank's rows of the unsharded residual stream [s, b, h], detached from the graph.
template <nn::ResidualStream Stream>
at::Tensor local_rows(const at::Tensor& full, const nn::Step& step) {
  if constexpr (std::is_same_v<Stream, nn::Invariant>) return full.detach().clone();
  return slice_of(full.detach(), step.sequence, /*dim=*/0, step.group.rank());
}

struct Used {
  comm::Counters forward, backward;
};

/// Returns the communication counters of `forward` and of the backward of its result on this rank.
inline Used used(const comm::Group& group, const std::function<at::Tensor()>& forward) {
  const comm::Counters before = group.counters();
  const at::Tensor y = forward();
  const comm::Counters between = group.counters();
  y.backward(y.detach());
  return {between - before, group.counters() - between};
}

}  // namespace shardwise::testing
