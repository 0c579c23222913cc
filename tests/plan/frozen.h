// Sets of frozen parameters for the tests of plan/.
#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "shardwise/config/parameters.h"
#include "shardwise/plan/frozen_parameters.h"

namespace shardwise::plan {

/// Returns the names of all parameters except those whose names contain one of `parts`.
inline std::set<std::string> names_without(const config::Config& config,
                                           const std::vector<std::string>& parts) {
  std::set<std::string> frozen;
  for (const config::ParameterInfo& parameter : config::ParameterTable(config)) {
    const auto holds = [&](const std::string& part) {
      return parameter.name.find(part) != std::string::npos;
    };
    if (std::ranges::none_of(parts, holds)) frozen.insert(parameter.name);
  }
  return frozen;
}

/// Returns all parameters except those whose names contain one of `parts`.
inline FrozenParameters all_but(const config::Config& config, const std::vector<std::string>& parts) {
  return {config, names_without(config, parts)};
}

}  // namespace shardwise::plan
