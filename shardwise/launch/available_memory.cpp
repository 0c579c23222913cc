#include "shardwise/launch/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "shardwise/launch/cgroup.h"

namespace shardwise::launch {
namespace {

namespace fs = std::filesystem;

constexpr double kNoMemoryLimit = 1e18;

/// Returns the number after `name` in a file of "name number" lines; `absent` if there is none.
double field_of(const fs::path& path, const std::string& name, double absent) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    double value;
    if (word == name) return file >> value ? value : absent;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return absent;
}

/// Returns the file's number; `absent` for another text, such as "max".
double number_in(const fs::path& path, double absent) {
  std::ifstream file(path);
  double value;
  return file >> value ? value : absent;
}

/// Returns what `limit` leaves beside `used`, of which inactive page cache can be dropped.
double left_of(double limit, double used, double inactive_cache) {
  return limit >= kNoMemoryLimit ? kNoMemoryLimit : std::max(limit - used + inactive_cache, 0.0);
}

double left_in_version_2(const fs::path& directory) {
  return left_of(number_in(directory / "memory.max", kNoMemoryLimit),
                 number_in(directory / "memory.current", 0),
                 field_of(directory / "memory.stat", "inactive_file", 0));
}

// Without a limit the file has a number near 2⁶³.
double left_in_version_1(const fs::path& directory) {
  return left_of(number_in(directory / "memory.limit_in_bytes", kNoMemoryLimit),
                 number_in(directory / "memory.usage_in_bytes", 0),
                 field_of(directory / "memory.stat", "total_inactive_file", 0));
}

}  // namespace

int64_t available_memory(const std::string& meminfo, const std::string& cgroups, const std::string& root) {
  const double of_host = 1024 * field_of(meminfo, "MemAvailable:", kNoMemoryLimit / 1024);
  const double of_group =
      least_of_cgroups({"memory", left_in_version_1, left_in_version_2, kNoMemoryLimit}, cgroups, root);
  return static_cast<int64_t>(std::min(of_host, of_group));
}

}  // namespace shardwise::launch
