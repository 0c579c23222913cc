// The covering grid: one training step of a small model, split in every way, against the unsharded reference.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <functional>

#include "tests/support/grid.h"
#include "tests/support/numerics.h"
#include "tests/support/ranks.h"

namespace shardwise::testing {
namespace {

// What a result of this problem may be off by; `what` is as in Distance.
using Bound = std::function<double(const Problem& problem, const std::string& what)>;

Bound bound_of(at::ScalarType dtype) {
  return [dtype](const Problem& problem, const std::string& what) {
    const auto bound = what == kLoss ? loss_bound : gradient_bound;
    return bound(problem.config(), problem.sequence * kBatch, dtype);
  };
}

// Runs every way to split each problem on `ranks` ranks; returns how many combinations ran.
size_t run_grid(int ranks, const std::vector<Prepared>& prepared, const Bound& bound) {
  Board board(ranks);
  std::atomic<size_t> combinations = 0;
  on_ranks(ranks, [&](const comm::Group& group) {
    for (const Prepared& each : prepared) {
      for (const Way& way : ways()) {
        for (const Distance& distance : distances(each, way, group, board)) {
          EXPECT_LE(distance.error, bound(each.problem, distance.what))
              << distance.what << " on rank " << group.rank() << " of " << ranks << "; " << way.name() << "; "
              << each.problem.name();
        }
        combinations += group.rank() == 0;
      }
    }
  });
  return combinations;
}

std::vector<Prepared> prepare_every(size_t nth, int ranks, at::ScalarType dtype) {
  at::set_num_threads(1);  // for tensors this small threads cost more than they bring
  std::vector<Prepared> prepared;
  const std::vector<Problem> all = problems(ranks);
  for (size_t i = 0; i < all.size(); i += nth) prepared.push_back(prepare(all[i], dtype));
  return prepared;
}

class Grid : public ::testing::TestWithParam<int> {};

TEST_P(Grid, Fp64EqualsTheReference) {
  const auto prepared = prepare_every(1, GetParam(), at::kDouble);
  const size_t combinations =
      run_grid(GetParam(), prepared, [](const Problem&, const std::string&) { return 1e-10; });
  EXPECT_EQ(combinations, problems(GetParam()).size() * ways().size());
  std::printf("%zu combinations on %d ranks\n", combinations, GetParam());
}

// Every seventh: seven is prime to every factor of the grid, so that each value of each dimension occurs.
TEST_P(Grid, Fp32StaysWithinItsBound) {
  run_grid(GetParam(), prepare_every(7, GetParam(), at::kFloat), bound_of(at::kFloat));
}

TEST_P(Grid, Bf16StaysWithinItsBound) {
  run_grid(GetParam(), prepare_every(7, GetParam(), at::kBFloat16), bound_of(at::kBFloat16));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Grid, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace shardwise::testing
