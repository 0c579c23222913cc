// The covering proof: one training step, split in every way, against the unsharded reference. `make test`
// runs coverings of the whole space, `make test-full` every combination of each family
// (tests/support/decoder_space).
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <mutex>

#include "tests/support/decoder_space.h"
#include "tests/support/extent.h"
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
    if (distance.error > error) error = distance.error, where = distance.what + "; " + place;
    const double share = distance.error / distance.bound;
    if (share > of_bound) of_bound = share, nearest = distance.what + "; " + place;
  }
};

void check(const Case& c, at::ScalarType dtype, Largest& largest) {
  const Prepared prepared = prepare(c.problem, dtype);
  Board board(c.ranks);
  std::mutex mutex;
  on_ranks(c.ranks, [&](const comm::Group& group) {
    const std::vector<Distance> all = distances(prepared, c.way, group, board);
    const std::lock_guard lock(mutex);
    for (const Distance& distance : all) {
      EXPECT_LE(distance.error, distance.bound)
          << distance.what << " on rank " << group.rank() << "; " << c.name;
      EXPECT_LT(distance.bound, 1) << "a gradient of zeros would pass: " << distance.what << "; " << c.name;
      largest.add(distance, c.name);
    }
  });
}

// Says how many combinations ran and how exactly.
void run(const std::vector<Combination>& combinations, const Space& space, at::ScalarType dtype,
         const std::string& what) {
  ASSERT_FALSE(combinations.empty());
  at::set_num_threads(1);  // for tensors this small threads cost more than they bring
  Largest largest;
  for (const Combination& combination : combinations) {
    const Case c = case_of(combination, space);
    EXPECT_NO_THROW(check(c, dtype, largest)) << c.name;
  }
  std::printf(
      "covered: %zu combinations of %s in %s; largest error %.1e (%s); nearest to its bound, %.2f of it "
      "(%s)\n",
      combinations.size(), what.c_str(), c10::toString(dtype), largest.error, largest.where.c_str(),
      largest.of_bound, largest.nearest.c_str());
}

// Large tables with the first family alone.
void run_families() {
  Tables tables = Tables::all;
  for (const FamilyChoices& family : family_choices()) {
    const Space space = decoder_space(std::exchange(tables, Tables::small));
    run(whole_of(family, space), space, at::kDouble, family.name);
  }
}

// fp64, whose bound is 10⁻¹⁰, shows every meeting of three values, and of four but for large tables.
TEST(Grid, Fp64EqualsTheReference) {
  const Space all = decoder_space(Tables::all), small = decoder_space(Tables::small);
  run(covering(all, 3, /*seed=*/1), all, at::kDouble, "a covering of strength 3");
  run(covering(small, 4, /*seed=*/2), small, at::kDouble, "a covering of strength 4");
  if (is_full()) run_families();
}

TEST(Grid, Fp32StaysWithinItsBound) {
  const Space space = decoder_space(Tables::small);
  run(covering(space, 2, /*seed=*/3), space, at::kFloat, "a covering of strength 2");
}

TEST(Grid, Bf16StaysWithinItsBound) {
  const Space space = decoder_space(Tables::small);
  run(covering(space, 2, /*seed=*/4), space, at::kBFloat16, "a covering of strength 2");
}

}  // namespace
}  // namespace shardwise::testing
