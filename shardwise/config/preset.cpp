// The presets of all families, in the order of the family table.
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include "shardwise/base/error.h"
#include "shardwise/config/family.h"

namespace shardwise::config {

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    for (const auto& [name, config] : family.presets) names.push_back(name);
  }
  return names;
}

Config preset(const std::string& name) {
  for (const Family& family : families()) {
    for (const auto& [known, config] : family.presets) {
      if (known == name) return config;
    }
  }
  C10_THROW_ERROR(ValueError, fmt::format("preset: must be one of {}; got {} [SW0022]",
                                          fmt::join(preset_names(), ", "), base::shortened(name)));
}

}  // namespace shardwise::config
