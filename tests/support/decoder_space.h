// The option space of a decoder's training step: its dimensions, their exclusions, and the Case of a
// combination.
#pragma once
#include "tests/support/covering.h"
#include "tests/support/problem.h"

namespace shardwise::testing {

/// One training step: number of ranks, sharding, and problem.
struct Case {
  int ranks = 1;
  RunConfig run = {Stream::tp, Path::symmetric};
  Problem problem = {{"MHA", 4, 4}, 17, 12, 32, /*dropout=*/0, /*is_tied=*/false};
  std::string name;
};

/// Vocabulary sizes to include. Large tables, of 31123 rows, dominate the time of their cases.
enum class Tables { all, small, large };
Space decoder_space(Tables tables);

Case case_of(const Combination& combination, const Space& space);

/// A published model family and the values that it fixes.
struct FamilyChoices {
  const char* name;
  std::vector<Space::Choice> fixed;
};
const std::vector<FamilyChoices>& family_choices();

/// Returns the part of the space that belongs to the family.
Space family_space(const FamilyChoices& family, Tables tables);

/// Returns every combination of the sharding options (ranks, stream, path, split batch, heads, vocabulary,
/// sequence, ffn, dropout, ties) for one family. The other options of each come from a covering of
/// strength 2.
std::vector<Combination> all_splits(const FamilyChoices& family, const Space& space);

/// Returns the combination with every recomputation mode and every set of frozen parameters.
std::vector<Combination> in_every_mode(const Combination& combination, const Space& space);

}  // namespace shardwise::testing
