#include <algorithm>
#include <stdexcept>

#include "tests/support/covering.h"

namespace shardwise::testing {

void Space::add(std::string dimension, std::vector<std::string> values) {
  dimensions_.push_back({std::move(dimension), std::move(values)});
}

Space::Index Space::index(const Choice& choice) const {
  for (size_t d = 0; d < dimensions_.size(); ++d) {
    if (dimensions_[d].name != choice.dimension) continue;
    const auto& values = dimensions_[d].values;
    const auto found = std::find(values.begin(), values.end(), choice.value);
    if (found != values.end()) return {d, static_cast<int>(found - values.begin())};
  }
  throw std::out_of_range("the space has no " + choice.dimension + " " + choice.value);
}

void Space::exclude(const Choice& a, const Choice& b) {
  excluded_.emplace_back(index(a), index(b));
}

std::string Space::name(const Combination& combination) const {
  std::string name;
  for (size_t d = 0; d < dimensions_.size(); ++d) {
    if (combination[d] == kUnset) continue;
    name += (name.empty() ? "" : ", ") + dimensions_[d].name + " " + dimensions_[d].values[combination[d]];
  }
  return name;
}

bool Space::allows(const Combination& combination) const {
  return std::none_of(excluded_.begin(), excluded_.end(), [&](const auto& pair) {
    const auto& [a, b] = pair;
    return combination[a.dimension] == a.value && combination[b.dimension] == b.value;
  });
}

bool Space::complete_(Combination& partial) const {
  if (!allows(partial)) return false;
  const auto open = std::find(partial.begin(), partial.end(), kUnset);
  if (open == partial.end()) return true;
  for (*open = 0; *open < values(open - partial.begin()); ++*open) {
    if (complete_(partial)) return true;
  }
  *open = kUnset;
  return false;
}

std::optional<Combination> Space::completed(Combination partial) const {
  if (!complete_(partial)) return std::nullopt;
  return partial;
}

Combination Space::partial(const std::vector<Choice>& choices) const {
  Combination partial(dimensions_.size(), kUnset);
  for (const Choice& choice : choices) {
    const Index found = index(choice);
    partial[found.dimension] = found.value;
  }
  return partial;
}

std::vector<Combination> Space::all(const Combination& partial) const {
  std::vector<Combination> found = {partial};
  for (size_t d = 0; d < dimensions_.size(); ++d) {
    std::vector<Combination> longer;
    for (Combination& combination : found) {
      for (int value = 0; value < values(d); ++value) {
        if (partial[d] != kUnset && partial[d] != value) continue;
        combination[d] = value;
        if (allows(combination)) longer.push_back(combination);
      }
    }
    found = std::move(longer);
  }
  return found;
}

}  // namespace shardwise::testing
