// One sharded training step of a small problem, held against the unsharded reference.
#pragma once
#include "tests/support/numerics.h"
#include "tests/support/problem.h"

namespace shardwise::testing {

/// How far one of a sharded step's results (numerics.h, or kReplicas) is from the reference's, and may be:
/// ‖a−b‖/‖b‖, or ‖a−b‖ where b is zero by its formula.
struct Distance {
  std::string what;
  double error, bound;
};
inline constexpr const char* kReplicas = "replicas";  // ranks that hold other bits than the owner

/// What one problem needs, made once per dtype.
struct Prepared {
  Problem problem;
  Tensors weights;  // of the model, in its dtype
  Batch batch;
  kernels::RandomKey key;
  ReferenceResult expected;  // fp64, from the same weights
  Spread spread;             // empty for fp64, where the bound is 1e-10
};
Prepared prepare(const Problem& problem, at::ScalarType dtype);

/// Collective: trains one step of `prepared` split over `group` and compares loss, gradients and the input's;
/// each rank returns its share of the comparisons. Throws when a frozen parameter got a gradient.
std::vector<Distance> distances(const Prepared& prepared, const Way& way, const comm::Group& group,
                                Board& board);

}  // namespace shardwise::testing
