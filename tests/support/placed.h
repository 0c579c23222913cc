// Test values for every placement, and the pairing with which a collective's backward is its adjoint.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include "shardwise/comm/group.h"
#include "shardwise/parallel/placement.h"
#include "tests/support/tensors.h"

namespace shardwise::testing {

/// Describes a distributed test value: its global shape, its split if it is sharded, and its seed.
struct GlobalSpec {
  std::vector<int64_t> shape;
  base::Split split;
  uint64_t seed;
};

/// Creates a rank's local tensor of a distributed value with placement P.
template <class P>
struct LocalValue;

template <>
struct LocalValue<parallel::Invariant> {
  static at::Tensor local(const GlobalSpec& spec, const comm::Group&) {
    return random_tensor(spec.shape, spec.seed);
  }
};
template <>
struct LocalValue<parallel::Replicated> : LocalValue<parallel::Invariant> {};
template <int64_t dim>
struct LocalValue<parallel::Sharded<dim>> {
  static at::Tensor local(const GlobalSpec& spec, const comm::Group& group) {
    return slice_of(random_tensor(spec.shape, spec.seed), spec.split, dim, group.rank());
  }
};
template <>
struct LocalValue<parallel::Partial> {
  /// Returns a rank's partial sum.
  static at::Tensor partial(const GlobalSpec& spec, int rank) {
    return random_tensor(spec.shape, spec.seed + 1000 * rank);
  }
  static at::Tensor local(const GlobalSpec& spec, const comm::Group& group) {
    return partial(spec, group.rank());
  }
  static at::Tensor sum(const GlobalSpec& spec, int ranks) {
    at::Tensor sum = partial(spec, 0);
    for (int rank = 1; rank < ranks; ++rank) sum = sum + partial(spec, rank);
    return sum;
  }
};

/// Returns the global pairing ⟨value, gradient⟩: the local one for an Invariant, otherwise the sum over the
/// ranks. Collective.
template <class P>
double pairing(const at::Tensor& value, const at::Tensor& gradient, const comm::Group& group) {
  const double local = testing::dot(value, gradient);
  if constexpr (std::is_same_v<P, parallel::Invariant>) return local;
  return group.all_reduce(at::full({1}, local, at::kDouble)).item<double>();
}

}  // namespace shardwise::testing
