#include "tests/support/covering.h"

#include <algorithm>
#include <random>
#include <stdexcept>

namespace shardwise::testing {
namespace {

// Number of candidates from which the best is chosen; more hardly give smaller coverings.
constexpr int kCandidates = 8;

// std::uniform_int_distribution and std::shuffle are implementation-defined.
size_t below(size_t bound, std::mt19937_64& random) {
  return random() % bound;
}

template <typename T>
void shuffle(std::vector<T>& values, std::mt19937_64& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i, random)]);
}

// A tuple of dimensions, and which combinations of their values are not covered yet.
struct Tuple {
  std::vector<size_t> dimensions;
  std::vector<bool> missing;  // by position

  // Returns the position of these dimensions' values in `missing`; nullopt if one is unset.
  std::optional<size_t> position(const Combination& combination, const Space& space) const {
    size_t position = 0;
    for (const size_t dimension : dimensions) {
      if (combination[dimension] == kUnset) return std::nullopt;
      position = position * space.values(dimension) + combination[dimension];
    }
    return position;
  }

  // Returns the combination at `position`, with all other dimensions unset.
  Combination at(size_t position, const Space& space) const {
    Combination partial(space.dimensions(), kUnset);
    for (auto d = dimensions.rbegin(); d != dimensions.rend(); ++d) {
      partial[*d] = static_cast<int>(position % space.values(*d));
      position /= space.values(*d);
    }
    return partial;
  }
};

std::vector<std::vector<size_t>> subsets(size_t of, size_t size, size_t first = 0) {
  if (size == 0) return {{}};
  std::vector<std::vector<size_t>> result;
  for (size_t chosen = first; chosen + size <= of; ++chosen) {
    for (std::vector<size_t>& rest : subsets(of, size - 1, chosen + 1)) {
      rest.insert(rest.begin(), chosen);
      result.push_back(std::move(rest));
    }
  }
  return result;
}

class Greedy {
 public:
  Greedy(const Space& space, int strength, uint64_t seed)
      : space_(space), random_(seed), of_(space.dimensions()) {
    for (std::vector<size_t>& dimensions : subsets(space.dimensions(), strength)) {
      for (const size_t dimension : dimensions) of_[dimension].push_back(tuples_.size());
      add_tuple_(std::move(dimensions));
    }
  }

  std::vector<Combination> run() {
    std::vector<Combination> covering;
    while (const auto start = something_missing()) {
      Combination best;
      size_t most = 0;
      for (int i = 0; i < kCandidates; ++i) {
        Combination candidate = grown(*start);
        const size_t shown = count_missing(candidate);
        if (shown > most) best = std::move(candidate), most = shown;
      }
      mark_shown_(best);
      covering.push_back(std::move(best));
    }
    return covering;
  }

 private:
  // Tuples that cannot be completed need not be covered.
  void add_tuple_(std::vector<size_t> dimensions) {
    size_t size = 1;
    for (const size_t dimension : dimensions) size *= space_.values(dimension);
    Tuple tuple{std::move(dimensions), std::vector<bool>(size)};
    for (size_t i = 0; i < size; ++i) {
      tuple.missing[i] = space_.completed(tuple.at(i, space_)).has_value();
    }
    tuples_.push_back(std::move(tuple));
  }

  std::optional<Combination> something_missing() {
    const size_t first = tuples_.empty() ? 0 : below(tuples_.size(), random_);
    for (size_t i = 0; i < tuples_.size(); ++i) {
      const Tuple& tuple = tuples_[(first + i) % tuples_.size()];
      const auto found = std::find(tuple.missing.begin(), tuple.missing.end(), true);
      if (found != tuple.missing.end()) return tuple.at(found - tuple.missing.begin(), space_);
    }
    return std::nullopt;
  }

  bool is_missing(const Tuple& tuple, const Combination& combination) const {
    const auto position = tuple.position(combination, space_);
    return position && tuple.missing[*position];
  }

  // Sets the other dimensions in random order, each to the value that covers most of the missing tuples.
  Combination grown(Combination partial) {
    std::vector<size_t> open;
    for (size_t d = 0; d < partial.size(); ++d) {
      if (partial[d] == kUnset) open.push_back(d);
    }
    shuffle(open, random_);
    for (const size_t dimension : open) partial[dimension] = best_value(partial, dimension);
    return partial;
  }

  int best_value(Combination partial, size_t dimension) {
    std::vector<int> best;
    size_t most = 0;
    for (partial[dimension] = 0; partial[dimension] < space_.values(dimension); ++partial[dimension]) {
      if (!space_.completed(partial)) continue;
      size_t shown = 0;
      for (const size_t tuple : of_[dimension]) shown += is_missing(tuples_[tuple], partial);
      if (best.empty() || shown > most) best.clear(), most = shown;
      if (shown == most) best.push_back(partial[dimension]);
    }
    return best.at(below(best.size(), random_));
  }

  size_t count_missing(const Combination& combination) const {
    return std::count_if(tuples_.begin(), tuples_.end(),
                         [&](const Tuple& tuple) { return is_missing(tuple, combination); });
  }

  void mark_shown_(const Combination& combination) {
    for (Tuple& tuple : tuples_) tuple.missing[*tuple.position(combination, space_)] = false;
  }

  const Space& space_;
  std::mt19937_64 random_;
  std::vector<Tuple> tuples_;
  std::vector<std::vector<size_t>> of_;  // the tuples that contain each dimension
};

}  // namespace

std::vector<Combination> covering(const Space& space, int strength, uint64_t seed) {
  if (strength < 1 || static_cast<size_t>(strength) > space.dimensions())
    throw std::out_of_range("covering: strength must be from 1 to the number of dimensions");
  return Greedy(space, strength, seed).run();
}

}  // namespace shardwise::testing
