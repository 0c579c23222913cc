#include "shardwise/config/freeze.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/config/family.h"
#include "shardwise/config/parameters.h"

namespace shardwise::config {
namespace {

using Names = std::vector<std::string>;

bool matches(const std::string& glob, const std::string& name) {
  return ::fnmatch(glob.c_str(), name.c_str(), /*flags=*/0) == 0;
}

/// Returns every parameter with its tensor names in the Hugging Face files.
std::vector<std::pair<std::string, Names>> names_of(const Config& config) {
  std::vector<std::pair<std::string, Names>> names;
  const Family& family = family_of(config.model_type);
  for (const ParameterInfo& parameter : ParameterTable(config))
    names.emplace_back(parameter.name, stored_names(family, parameter.name).names);
  return names;
}

void check_matches(const std::string& command, const Names& globs, const Names& all) {
  for (const std::string& glob : globs) {
    const bool is_used = std::ranges::any_of(all, [&](const auto& name) { return matches(glob, name); });
    TORCH_CHECK_VALUE(is_used, command, ": --freeze must match tensors of the model, such as ", all.front(),
                      "; got ", base::shortened(glob), ", which matches no tensor [SW0033]");
  }
}

void check_all_or_none(const std::string& command, const Names& fused, const Names& frozen) {
  TORCH_CHECK_VALUE(
      frozen.empty() || frozen.size() == fused.size(),
      fmt::format(
          "{}: --freeze must match all or none of {}, which are one fused parameter; got only {} [SW0034]",
          command, fmt::join(fused, ", "), fmt::join(frozen, ", ")));
}

}  // namespace

Frozen frozen_by(const std::string& command, const Names& globs, const Config& config) {
  TORCH_CHECK_VALUE(globs.empty() || !can_only_be_planned(config), command,
                    ": --freeze needs a model that this build can run; got ", config.model_type, " [SW0830]");
  if (globs.empty()) return {};
  const auto parameters = names_of(config);
  Names all;
  Frozen frozen;
  for (const auto& [parameter, names] : parameters) {
    Names chosen;
    for (const std::string& name : names) {
      if (std::ranges::any_of(globs, [&](const auto& glob) { return matches(glob, name); }))
        chosen.push_back(name);
    }
    check_all_or_none(command, names, chosen);
    if (!chosen.empty()) frozen.parameters.insert(parameter);
    frozen.tensors.insert(chosen.begin(), chosen.end());
    all.insert(all.end(), names.begin(), names.end());
  }
  check_matches(command, globs, all);
  TORCH_CHECK_VALUE(frozen.parameters.size() < parameters.size(), command,
                    ": --freeze must not match all tensors; got all ", all.size(), " tensors [SW0035]");
  return frozen;
}

}  // namespace shardwise::config
