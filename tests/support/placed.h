// Values of every placement for tests, and the pairing under which a collective's backward is its adjoint.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include "shardwise/comm/group.h"
#include "shardwise/parallel/placement.h"
#include "tests/support/tensors.h"

namespace shardwise::testing {

/// How a placed value is made: the whole it stands for, and its split over the ranks when it is sharded.
struct Whole {
  std::vector<int64_t> shape;
  base::Split split;
  uint64_t seed;
};

template <class P>
struct Made;

template <>
struct Made<parallel::Invariant> {
  static at::Tensor local(const Whole& whole, const comm::Group&) {
    return random_tensor(whole.shape, whole.seed);
  }
};
template <>
struct Made<parallel::Replicated> : Made<parallel::Invariant> {};
template <int64_t dim>
struct Made<parallel::Sharded<dim>> {
  static at::Tensor local(const Whole& whole, const comm::Group& group) {
    return slice_of(random_tensor(whole.shape, whole.seed), whole.split, dim, group.rank());
  }
};
template <>
struct Made<parallel::Partial> {
  /// A term of its own for every rank.
  static at::Tensor term(const Whole& whole, int rank) {
    return random_tensor(whole.shape, whole.seed + 1000 * rank);
  }
  static at::Tensor local(const Whole& whole, const comm::Group& group) { return term(whole, group.rank()); }
  static at::Tensor sum(const Whole& whole, int ranks) {
    at::Tensor sum = term(whole, 0);
    for (int rank = 1; rank < ranks; ++rank) sum = sum + term(whole, rank);
    return sum;
  }
};

/// ⟨value, gradient⟩ of the whole: an Invariant is one value, anything else a term per rank. Collective.
template <class P>
double pairing(const at::Tensor& value, const at::Tensor& gradient, const comm::Group& group) {
  const double own = testing::dot(value, gradient);
  if constexpr (std::is_same_v<P, parallel::Invariant>) return own;
  return group.all_reduce(at::full({1}, own, at::kDouble)).item<double>();
}

}  // namespace shardwise::testing
