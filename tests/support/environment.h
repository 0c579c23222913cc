// Environment variables that a test changes and that are restored at its end.
#pragma once
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/base/environment.h"

namespace shardwise::testing {

class Environment {
 public:
  Environment() = default;
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    for (auto i = before_.rbegin(); i != before_.rend(); ++i) assign(i->first, i->second);
  }

  /// nullopt removes the variable.
  void set(const std::string& name, const std::optional<std::string>& value) {
    before_.emplace_back(name, base::env_text(name.c_str()));
    assign(name, value);
  }

 private:
  static void assign(const std::string& name, const std::optional<std::string>& value) {
    value ? setenv(name.c_str(), value->c_str(), /*overwrite=*/1) : unsetenv(name.c_str());
  }
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

}  // namespace shardwise::testing
