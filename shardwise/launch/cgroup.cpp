#include "shardwise/launch/cgroup.h"

#include <algorithm>
#include <fstream>

namespace shardwise::launch {
namespace {

namespace fs = std::filesystem;

// Returns the smallest limit of `group` and its ancestors; a group that does not exist has none.
double least_upwards(const fs::path& root, const std::string& group, double (*limit_of)(const fs::path&)) {
  double least = limit_of(root);
  fs::path directory = root;
  for (const fs::path& part : fs::path(group).relative_path())
    least = std::min(least, limit_of(directory /= part));
  return least;
}

bool lists(const std::string& controllers, const std::string& controller) {
  return ("," + controllers + ",").find("," + controller + ",") != std::string::npos;
}

}  // namespace

double least_of_cgroups(const CgroupLimit& limit, const std::string& cgroups, const std::string& root) {
  std::ifstream lines(cgroups);
  double least = limit.unlimited;
  for (std::string line; std::getline(lines, line);) {  // "0::/group" or "4:cpu,cpuacct:/group"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (controllers.empty()) least = std::min(least, least_upwards(root, group, limit.version_2));
    if (lists(controllers, limit.controller))
      least = std::min(least, least_upwards(fs::path(root) / limit.controller, group, limit.version_1));
  }
  return least;
}

}  // namespace shardwise::launch
