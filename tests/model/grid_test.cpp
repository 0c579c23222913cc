// The covering grid: one training step of a small model, split in every way, against the unsharded reference.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <mutex>

#include "tests/support/grid.h"
#include "tests/support/ranks.h"

namespace shardwise::testing {
namespace {

/// The largest error of a grid, and the error that came nearest to its bound.
struct Largest {
  double error = 0, of_bound = 0;
  std::string where, nearest;

  void add(const Distance& distance, const std::string& place) {
    if (distance.bound == 0) return;  // replicas: equal or not
    if (distance.error > error) error = distance.error, where = distance.what + ", " + place;
    const double share = distance.error / distance.bound;
    if (share > of_bound) of_bound = share, nearest = distance.what + ", " + place;
  }
};

// Runs every way to split each problem on `ranks` ranks and says how many combinations ran and how exactly.
size_t run_grid(int ranks, const std::vector<Prepared>& prepared) {
  Board board(ranks);
  std::mutex mutex;
  size_t combinations = 0;
  Largest largest;
  on_ranks(ranks, [&](const comm::Group& group) {
    for (const Prepared& each : prepared) {
      for (const Way& way : ways()) {
        const std::string place = way.name() + "; " + each.problem.name();
        const std::vector<Distance> all = distances(each, way, group, board);
        const std::lock_guard lock(mutex);
        for (const Distance& distance : all) {
          EXPECT_LE(distance.error, distance.bound)
              << distance.what << " on rank " << group.rank() << " of " << ranks << "; " << place;
          EXPECT_LT(distance.bound, 1)
              << "a gradient of zeros would pass: " << distance.what << "; " << place;
          largest.add(distance, place);
        }
        combinations += group.rank() == 0;
      }
    }
  });
  std::printf(
      "%zu combinations on %d ranks; largest error %.1e (%s); nearest to its bound, %.2f of it (%s)\n",
      combinations, ranks, largest.error, largest.where.c_str(), largest.of_bound, largest.nearest.c_str());
  return combinations;
}

// Every `nth` problem; the ranks' threads share the work.
std::vector<Prepared> prepare_every(size_t nth, int ranks, at::ScalarType dtype) {
  at::set_num_threads(1);  // for tensors this small threads cost more than they bring
  const std::vector<Problem> all = problems(ranks);
  std::vector<Prepared> prepared((all.size() + nth - 1) / nth);
  on_ranks(2, [&](const comm::Group& group) {
    for (size_t i = group.rank(); i < prepared.size(); i += 2) prepared[i] = prepare(all[i * nth], dtype);
  });
  return prepared;
}

class Grid : public ::testing::TestWithParam<int> {};

TEST_P(Grid, Fp64EqualsTheReference) {
  const size_t combinations = run_grid(GetParam(), prepare_every(1, GetParam(), at::kDouble));
  EXPECT_EQ(combinations, problems(GetParam()).size() * ways().size());
}

// Every seventh: seven is prime to every factor of the grid, so that each value of each dimension occurs.
TEST_P(Grid, Fp32StaysWithinItsBound) {
  run_grid(GetParam(), prepare_every(7, GetParam(), at::kFloat));
}

TEST_P(Grid, Bf16StaysWithinItsBound) {
  run_grid(GetParam(), prepare_every(7, GetParam(), at::kBFloat16));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Grid, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace shardwise::testing
