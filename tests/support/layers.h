// What the tests of layers share: linear layers with a bias, a rank's part of the stream, what a layer sends.
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

/// What a rank holds of a whole stream [s, b, h], in memory of its own and without a graph.
template <nn::ResidualStream Stream>
at::Tensor own_rows(const at::Tensor& whole, const nn::Step& step) {
  if constexpr (std::is_same_v<Stream, nn::Invariant>) return whole.detach().clone();
  return slice_of(whole.detach(), step.sequence, /*dim=*/0, step.group.rank());
}

struct Used {
  comm::Counters forward, backward;
};

/// What this rank sends in `forward` and in the backward of its result.
inline Used used(const comm::Group& group, const std::function<at::Tensor()>& forward) {
  const comm::Counters before = group.counters();
  const at::Tensor y = forward();
  const comm::Counters between = group.counters();
  y.backward(y.detach());
  return {between - before, group.counters() - between};
}

}  // namespace shardwise::testing
