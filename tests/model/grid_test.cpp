// The covering proof: one training step, split in every way, against the unsharded reference. `make test`
// runs coverings of the whole space, `make test-full` every split of each family as well, and one family's in
// every mode of recomputation with everything that may be frozen (tests/support/decoder_space).
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

/// Where a query sees itself and one token more at most, the gradients of queries and keys are differences of
/// almost equal numbers: in bf16 rounding may leave more than they are.
bool may_drown(const Distance& distance, const Case& c) {
  const bool is_of_scores =
      distance.what.find("q_proj") != std::string::npos || distance.what.find("k_proj") != std::string::npos;
  return is_of_scores && c.problem.sequence <= 2;
}

void check(const Case& c, const Prepared& prepared, Largest& largest) {
  Board board(c.ranks);
  std::mutex mutex;
  on_ranks(c.ranks, [&](const comm::Group& group) {
    const std::vector<Distance> all = distances(prepared, c.way, group, board);
    const std::lock_guard lock(mutex);
    for (const Distance& distance : all) {
      EXPECT_LE(distance.error, distance.bound)
          << distance.what << " on rank " << group.rank() << "; " << c.name;
      EXPECT_TRUE(distance.bound < 1 || may_drown(distance, c))
          << "a gradient of zeros would pass, within " << distance.bound << ": " << distance.what << "; "
          << c.name;
      largest.add(distance, c.name);
    }
  });
}

// Combinations that differ in their modes alone (in_every_mode): one reference serves them all.
void check_modes(const std::vector<Combination>& modes, const Space& space, at::ScalarType dtype,
                 Largest& largest) {
  Prepared prepared = prepare(case_of(modes.at(0), space).problem, dtype);
  for (const Combination& combination : modes) {
    const Case c = case_of(combination, space);
    prepared.problem.frozen = c.problem.frozen;
    EXPECT_NO_THROW(check(c, prepared, largest)) << c.name;
  }
}

enum class Modes { own, every };

// Says how many combinations ran and how exactly.
void run(const std::vector<Combination>& combinations, const Space& space, at::ScalarType dtype,
         const std::string& what, Modes modes = Modes::own) {
  ASSERT_FALSE(combinations.empty());
  at::set_num_threads(1);  // for tensors this small threads cost more than they bring
  Largest largest;
  size_t count = 0;
  for (const Combination& combination : combinations) {
    const std::vector<Combination> all =
        modes == Modes::own ? std::vector<Combination>{combination} : in_every_mode(combination, space);
    EXPECT_NO_THROW(check_modes(all, space, dtype, largest)) << space.name(combination);
    count += all.size();
  }
  std::printf(
      "covered: %zu combinations of %s in %s; largest error %.1e (%s); nearest to its bound, %.2f of it "
      "(%s)\n",
      count, what.c_str(), c10::toString(dtype), largest.error, largest.where.c_str(), largest.of_bound,
      largest.nearest.c_str());
}

// Every split. Every mode of each, and every split of large tables, with the first family alone.
void run_families() {
  const Space small = decoder_space(Tables::small), large = decoder_space(Tables::large);
  for (const FamilyChoices& family : family_choices()) {
    const std::string name = family.name;
    const bool is_first = &family == &family_choices().front();
    run(whole_of(family, small), small, at::kDouble, name, is_first ? Modes::every : Modes::own);
    if (is_first) {
      run(whole_of(family, large), large, at::kDouble, name + " with large tables");
    } else {
      const Space all = family_space(family, Tables::all);
      run(covering(all, 3, /*seed=*/5), all, at::kDouble, "a covering of strength 3 of " + name);
    }
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
