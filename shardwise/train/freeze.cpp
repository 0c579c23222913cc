#include "shardwise/train/freeze.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>

#include "shardwise/model/config_tensors.h"
#include "shardwise/model/family.h"

namespace shardwise::train {
namespace {

using Names = std::vector<std::string>;

bool matches(const std::string& glob, const std::string& name) {
  return ::fnmatch(glob.c_str(), name.c_str(), /*flags=*/0) == 0;
}

/// For every parameter of ours, the names that the files have for it.
std::vector<std::pair<std::string, Names>> names_of(const model::Config& config) {
  std::vector<std::pair<std::string, Names>> names;
  const model::Family& family = model::family_of(config.model_type);
  for (const model::WholeTensor& whole : model::whole_tensors(config))
    names.emplace_back(whole.name, model::stored_names(family, whole.name).names);
  return names;
}

void check_matches(const Names& globs, const Names& all) {
  for (const std::string& glob : globs) {
    const bool is_used = std::ranges::any_of(all, [&](const auto& name) { return matches(glob, name); });
    TORCH_CHECK_VALUE(is_used, "train: --freeze must match tensors of the model, such as ", all.front(),
                      "; got ", glob, ", which matches none");
  }
}

void check_whole(const Names& together, const Names& frozen) {
  TORCH_CHECK_VALUE(
      frozen.empty() || frozen.size() == together.size(),
      fmt::format("train: --freeze must take all or none of {}, which are trained as one; got only {}",
                  fmt::join(together, ", "), fmt::join(frozen, ", ")));
}

}  // namespace

Frozen frozen_by(const Names& globs, const model::Config& config) {
  const auto parameters = names_of(config);
  Names all;
  Frozen frozen;
  for (const auto& [parameter, names] : parameters) {
    Names chosen;
    std::ranges::copy_if(names, std::back_inserter(chosen), [&](const std::string& name) {
      return std::ranges::any_of(globs, [&](const auto& glob) { return matches(glob, name); });
    });
    check_whole(names, chosen);
    if (!chosen.empty()) frozen.parameters.insert(parameter);
    frozen.tensors.insert(chosen.begin(), chosen.end());
    all.insert(all.end(), names.begin(), names.end());
  }
  check_matches(globs, all);
  TORCH_CHECK_VALUE(frozen.parameters.size() < parameters.size(),
                    "train: --freeze must leave something to train; got all ", all.size(), " tensors");
  return frozen;
}

}  // namespace shardwise::train
