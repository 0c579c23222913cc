// Covering arrays: a small set of a space's combinations that contains every allowed pair (or triple) of
// values.
//
// Most faults need one option or an interaction of two. A covering array of strength 2 contains every such
// pair, while the full space is far too large to test. Source: Cohen et al. 1997 (AETG), greedy.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardwise::testing {

/// One value per dimension, as its index; kUnset if no value is chosen yet.
using Combination = std::vector<int>;
inline constexpr int kUnset = -1;

/// Dimensions with their values, and pairs of values that exclude each other.
class Space {
 public:
  /// A dimension's name and the name of one of its values.
  struct Choice {
    std::string dimension, value;
  };

  void add(std::string dimension, std::vector<std::string> values);
  /// Excludes combinations with both values; a value that excludes itself is in no combination.
  /// Errors: std::out_of_range if there is no such choice.
  void exclude(const Choice& a, const Choice& b);

  size_t dimensions() const { return dimensions_.size(); }
  int values(size_t dimension) const { return static_cast<int>(dimensions_[dimension].values.size()); }
  /// Returns a combination with the given choices and the rest unset. Errors: std::out_of_range if there is
  /// no such choice.
  Combination partial(const std::vector<Choice>& choices) const;
  /// Formats a combination, as in "ranks 4, heads MQA".
  std::string name(const Combination& combination) const;

  /// Returns true if no two of the values set so far exclude each other.
  bool allows(const Combination& combination) const;
  /// Returns an allowed combination with the values set in `partial`, or nullopt.
  std::optional<Combination> completed(Combination partial) const;
  /// Returns all allowed combinations with the values set in `partial`, in lexicographic order.
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

/// Returns allowed combinations that contain every `strength`-tuple of values that occurs in the space.
/// Deterministic for a seed on every machine. Cost: about (combinations · dimensions^strength) steps.
std::vector<Combination> covering(const Space& space, int strength, uint64_t seed);

}  // namespace shardwise::testing
