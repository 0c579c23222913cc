// The space of all that a decoder's training step can be asked to do: its dimensions, which of their values
// cannot meet, and what a combination of them stands for.
#pragma once
#include "tests/support/covering.h"
#include "tests/support/problem.h"

namespace shardwise::testing {

/// One training step: on how many ranks, split how, of what problem.
struct Case {
  int ranks = 1;
  Way way = {Stream::tp, Path::symmetric};
  Problem problem = {{"MHA", 4, 4}, 17, 12, 32, /*dropout=*/0, /*is_tied=*/false};
  std::string name;
};

/// Vocabulary tables of 31123 rows, the large ones, take most of the time that they are in.
enum class Tables { all, small, large };
Space decoder_space(Tables tables);

Case case_of(const Combination& combination, const Space& space);

/// A published family: the values that are fixed by it.
struct FamilyChoices {
  const char* name;
  std::vector<Space::Choice> fixed;
};
const std::vector<FamilyChoices>& family_choices();

/// What of the space is the family's.
Space family_space(const FamilyChoices& family, Tables tables);

/// Every combination of what decides a split (ranks, stream, path, halves, heads, vocabulary, sequence, ffn,
/// dropout, ties) for one family; what else a step can be asked is drawn for each from a covering of
/// strength 2.
std::vector<Combination> whole_of(const FamilyChoices& family, const Space& space);

/// The same split and problem with every recomputation and everything that may be frozen.
std::vector<Combination> in_every_mode(const Combination& combination, const Space& space);

}  // namespace shardwise::testing
