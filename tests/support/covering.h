// Coverings: a few of a space's combinations in which any two (or three) values that may occur together do.
//
// Most faults need one option or the meeting of two; a covering of strength 2 shows every such meeting at
// least once while the space is far too large to walk through. Source: Cohen et al. 1997 (AETG), greedy.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardwise::testing {

/// One value for each dimension, as its index; kUnset where none is chosen yet.
using Combination = std::vector<int>;
inline constexpr int kUnset = -1;

/// Dimensions with their values, and which two values exclude each other.
class Space {
 public:
  /// The name of a dimension and of one of its values.
  struct Choice {
    std::string dimension, value;
  };

  void add(std::string dimension, std::vector<std::string> values);
  /// No combination holds both; a value that excludes itself is in none. Errors: std::out_of_range when there
  /// is no such choice.
  void exclude(const Choice& a, const Choice& b);

  size_t dimensions() const { return dimensions_.size(); }
  int values(size_t dimension) const { return static_cast<int>(dimensions_[dimension].values.size()); }
  /// What is given, the rest unset. Errors: as exclude.
  Combination partial(const std::vector<Choice>& choices) const;
  /// "ranks 4, heads MQA".
  std::string name(const Combination& combination) const;

  /// No two of the values set so far exclude each other.
  bool allows(const Combination& combination) const;
  /// An allowed combination that holds what is set in `partial`; none when there is none.
  std::optional<Combination> completed(Combination partial) const;
  /// Every allowed combination that holds what is set in `partial`, in the order of their values.
  std::vector<Combination> all(const Combination& partial) const;
  std::vector<Combination> all() const { return all(partial({})); }

 private:
  struct Dimension {
    std::string name;
    std::vector<std::string> values;
  };
  struct Index {
    size_t dimension;
    int value;
  };
  Index index(const Choice& choice) const;
  bool complete_(Combination& partial) const;

  std::vector<Dimension> dimensions_;
  std::vector<std::pair<Index, Index>> excluded_;
};

/// Allowed combinations in which every `strength` values that occur together in the whole space do so. The
/// same on every machine for the same seed. Cost: about (combinations · dimensions^strength) steps.
std::vector<Combination> covering(const Space& space, int strength, uint64_t seed);

}  // namespace shardwise::testing
