// The presets of all families, in the order of the family tables.
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include "shardwise/base/error.h"
#include "shardwise/config/family.h"

namespace shardwise::config {
namespace {

std::vector<std::string> names_in(const std::vector<Family>& families) {
  std::vector<std::string> names;
  for (const Family& family : families) {
    for (const auto& [name, config] : family.presets) names.push_back(name);
  }
  return names;
}

Config preset_in(const std::vector<Family>& families, const std::string& name) {
  for (const Family& family : families) {
    for (const auto& [known, config] : family.presets) {
      if (known == name) return config;
    }
  }
  C10_THROW_ERROR(ValueError, fmt::format("preset: must be one of {}; got {} [SW0022]",
                                          fmt::join(names_in(families), ", "), base::shortened(name)));
}

}  // namespace

std::vector<std::string> preset_names() {
  return names_in(families());
}

Config preset(const std::string& name) {
  return preset_in(families(), name);
}

std::vector<std::string> preset_names_to_plan() {
  return names_in(all_families());
}

Config preset_to_plan(const std::string& name) {
  return preset_in(all_families(), name);
}

}  // namespace shardwise::config
