// Compares one sharded training step of a small problem with the unsharded reference.
#pragma once
#include "tests/support/numerics.h"
#include "tests/support/problem.h"

namespace shardwise::testing {

/// The error of one of a sharded step's results (numerics.h, or kReplicas) and its bound: ‖a−b‖/‖b‖, or ‖a−b‖
/// if b is zero by its formula.
struct Distance {
  std::string what;
  double error, bound;
};
inline constexpr const char* kReplicas = "replicas";  // number of ranks whose bits differ from the owner's

/// The inputs and the expected result of a problem, computed once per dtype.
struct Prepared {
  Problem problem;
  Tensors weights;  // in the model's dtype
  Batch batch;
  kernels::RandomKey key;
  ReferenceResult expected;  // fp64, from the same weights
  Spread spread;             // empty for fp64, whose bound is 1e-10
};
Prepared prepare(const Problem& problem, at::ScalarType dtype);

/// Runs one training step of `prepared` sharded over `group`, and compares the loss, all gradients and the
/// input's gradient. Collective: each rank returns a part of the comparisons. Throws if a frozen parameter
/// got a gradient.
std::vector<Distance> distances(const Prepared& prepared, const RunConfig& run, const comm::Group& group,
                                Board& board);

}  // namespace shardwise::testing
