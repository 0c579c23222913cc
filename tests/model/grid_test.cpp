// The covering test: compares one training step in every sharded configuration with the unsharded reference.
// `make test` runs covering arrays of the full space and of each family's; `make test-full` runs every split
// of each family, and of one family every recomputation mode with every set of frozen parameters
// (tests/support/decoder_space).
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <regex>

#include "tests/support/decoder_space.h"
#include "tests/support/extent.h"
#include "tests/support/grid.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::grid_test {
namespace {

/// The largest error of a grid, and the error that is closest to its bound.
struct Largest {
  double error = 0, of_bound = 0;
  std::string where, nearest;

  void add(const Distance& distance, const std::string& name) {
    if (distance.bound == 0) return;  // replicas must be equal
    if (distance.error > error) error = distance.error, where = distance.what + "; " + name;
    const double share = distance.error / distance.bound;
    if (share > of_bound) of_bound = share, nearest = distance.what + "; " + name;
  }
};

/// Counts the comparisons of each tensor, over all layers, that would detect a gradient of zeros. In bf16 the
/// rounding error may exceed a small gradient, above all those of queries and keys at few positions, which
/// are differences of almost equal values. Such comparisons detect nothing and must be rare.
class DetectionCount {
 public:
  void add(const Distance& distance) {
    static const std::regex layer("[.][0-9]+[.]");
    auto& [detecting, all] = by_kind_[std::regex_replace(distance.what, layer, ".*.")];
    detecting += distance.bound < 1;
    all += 1;
  }

  void expect_of_each(double min_fraction) const {
    EXPECT_FALSE(by_kind_.empty());
    for (const auto& [kind, counts] : by_kind_)
      EXPECT_GE(counts.first, min_fraction * counts.second)
          << kind << ": a gradient of zeros would pass in the others of " << counts.second;
  }

 private:
  std::map<std::string, std::pair<int, int>> by_kind_;
};

/// The results of a grid's comparisons.
struct GridResult {
  Largest largest;
  DetectionCount detection;
};

void check(const Case& c, const Prepared& prepared, GridResult& result) {
  Board board(c.ranks);
  std::mutex mutex;
  on_ranks(c.ranks, [&](const comm::Group& group) {
    const std::vector<Distance> all = distances(prepared, c.run, group, board);
    const std::lock_guard lock(mutex);
    for (const Distance& distance : all) {
      EXPECT_LE(distance.error, distance.bound)
          << distance.what << " on rank " << group.rank() << "; " << c.name;
      result.largest.add(distance, c.name);
      result.detection.add(distance);
    }
  });
}

// Checks combinations that differ only in their modes (in_every_mode) and share one reference.
void check_modes(const std::vector<Combination>& modes, const Space& space, at::ScalarType dtype,
                 GridResult& result) {
  Prepared prepared = prepare(case_of(modes.at(0), space).problem, dtype);
  for (const Combination& combination : modes) {
    const Case c = case_of(combination, space);
    prepared.problem.frozen = c.problem.frozen;
    EXPECT_NO_THROW(check(c, prepared, result)) << c.name;
  }
}

enum class Modes { given, every };

// Prints the number of combinations and the largest error.
void run(const std::vector<Combination>& combinations, const Space& space, at::ScalarType dtype,
         const std::string& what, Modes modes = Modes::given) {
  ASSERT_FALSE(combinations.empty());
  at::set_num_threads(1);  // threads cost more than they save on tensors this small
  GridResult result;
  size_t count = 0;
  for (const Combination& combination : combinations) {
    const std::vector<Combination> all =
        modes == Modes::given ? std::vector<Combination>{combination} : in_every_mode(combination, space);
    EXPECT_NO_THROW(check_modes(all, space, dtype, result)) << space.name(combination);
    count += all.size();
  }
  result.detection.expect_of_each(dtype == at::kBFloat16 ? 0.9 : 1);
  const Largest& largest = result.largest;
  std::printf(
      "covered: %zu combinations of %s in %s; largest error %.1e (%s); closest to its bound, %.2f of it "
      "(%s)\n",
      count, what.c_str(), c10::toString(dtype), largest.error, largest.where.c_str(), largest.of_bound,
      largest.nearest.c_str());
}

// fp64 has a bound of 10⁻¹⁰. Covers every combination of three values, and of four without large tables.
TEST(Grid, Fp64MatchesTheReference) {
  const Space all = decoder_space(Tables::all), small = decoder_space(Tables::small);
  run(covering(all, 3, /*seed=*/1), all, at::kDouble, "a covering of strength 3");
  run(covering(small, 4, /*seed=*/2), small, at::kDouble, "a covering of strength 4");
}

TEST(Grid, Fp32StaysWithinItsBound) {
  const Space space = decoder_space(Tables::small);
  run(covering(space, 2, /*seed=*/3), space, at::kFloat, "a covering of strength 2");
}

TEST(Grid, Bf16StaysWithinItsBound) {
  const Space space = decoder_space(Tables::small);
  run(covering(space, 2, /*seed=*/4), space, at::kBFloat16, "a covering of strength 2");
}

// Returns every split of the family in a full run, otherwise those that cover every combination of two
// values.
std::vector<Combination> splits_of(const FamilyChoices& family, Tables tables) {
  if (is_full()) return all_splits(family, decoder_space(tables));
  return covering(family_space(family, tables), 2, /*seed=*/5);
}

// Only the first family runs with all modes and with large tables, because these multiply the splits most.
const FamilyChoices& first_family() {
  return family_choices().front();
}

class FamilyGrid : public ::testing::TestWithParam<FamilyChoices> {};
INSTANTIATE_TEST_SUITE_P(Other, FamilyGrid,
                         ::testing::ValuesIn(family_choices().begin() + 1, family_choices().end()),
                         [](const auto& tested) {
                           return std::regex_replace(tested.param.name, std::regex("[^A-Za-z0-9]"), "");
                         });

TEST_P(FamilyGrid, EverySplitMatchesTheReference) {
  const FamilyChoices& family = GetParam();
  const Space small = decoder_space(Tables::small), all = family_space(family, Tables::all);
  run(splits_of(family, Tables::small), small, at::kDouble, family.name);
  if (is_full())
    run(covering(all, 3, /*seed=*/5), all, at::kDouble,
        std::string("a covering of strength 3 of ") + family.name);
}

TEST(ModesGrid, EveryModeMatchesTheReference) {
  run(splits_of(first_family(), Tables::small), decoder_space(Tables::small), at::kDouble,
      std::string("every mode of ") + first_family().name, Modes::every);
}

TEST(LargeTablesGrid, EverySplitMatchesTheReference) {
  run(splits_of(first_family(), Tables::large), decoder_space(Tables::large), at::kDouble,
      std::string(first_family().name) + " with large tables");
}

}  // namespace
}  // namespace shardwise::testing::grid_test
