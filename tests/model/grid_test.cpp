// The covering test: compares one training step in every sharded configuration with the unsharded reference.
// `make test` runs covering arrays of the full space and of each family's; `make test-full` runs every split
// of each family, and of one family every recomputation mode with every set of frozen parameters
// (tests/support/decoder_space).
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <regex>

#include "tests/model/grid_result.h"
#include "tests/support/extent.h"

namespace shardwise::testing::grid_test {
namespace {

// Checks combinations that differ only in their modes (in_every_mode) and share one reference.
void check_modes(const std::vector<Combination>& modes, const Space& space, at::ScalarType dtype,
                 GridResult& result) {
  Prepared prepared = prepare(case_of(modes.at(0), space).problem, dtype);
  for (const Combination& combination : modes) {
    const Case c = case_of(combination, space);
    prepared.problem.frozen = c.problem.frozen;
    EXPECT_NO_THROW(compare(c, prepared, result)) << c.name;
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
  result.expect_detection(dtype == at::kBFloat16 ? 0.9 : 1);
  if (dtype != at::kDouble) result.expect_shares(limits_of(dtype));
  std::printf("covered: %zu combinations of %s in %s; %s\n", count, what.c_str(), c10::toString(dtype),
              result.summary().c_str());
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
