#include "shardwise/launch/affinity_quota.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace shardwise::launch {
namespace {

namespace fs = std::filesystem;

constexpr double kUnlimited = 1e6;

// cpu.max contains "quota period" in microseconds, or "max period".
double version_2(const fs::path& directory) {
  std::ifstream file(directory / "cpu.max");
  double quota, period;
  return file >> quota >> period ? quota / period : kUnlimited;
}

// A quota of -1 means unlimited.
double version_1(const fs::path& directory) {
  std::ifstream quota_file(directory / "cpu.cfs_quota_us"), period_file(directory / "cpu.cfs_period_us");
  double quota, period;
  return quota_file >> quota && period_file >> period && quota > 0 ? quota / period : kUnlimited;
}

// Returns the smallest quota of `group` and its ancestors; a group that does not exist has no limit.
double least_upwards(const fs::path& root, const std::string& group, double (*quota_of)(const fs::path&)) {
  double least = quota_of(root);
  fs::path directory = root;
  for (const fs::path& part : fs::path(group).relative_path())
    least = std::min(least, quota_of(directory /= part));
  return least;
}

bool lists_cpu(const std::string& controllers) {
  return ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

double cpu_quota(const std::string& cgroups, const std::string& root) {
  std::ifstream lines(cgroups);
  double least = kUnlimited;
  for (std::string line; std::getline(lines, line);) {  // "0::/group" or "4:cpu,cpuacct:/group"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      group = line.substr(second + 1);
    if (controllers.empty()) least = std::min(least, least_upwards(root, group, version_2));
    if (lists_cpu(controllers))
      least = std::min(least, least_upwards(fs::path(root) / "cpu", group, version_1));
  }
  return least;
}

}  // namespace shardwise::launch
