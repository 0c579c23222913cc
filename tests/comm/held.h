// What this process holds of the system: counted before and after, to see that nothing stays behind.
#pragma once
#include <dirent.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace shardwise::testing {

inline int entries(const char* directory) {
  int count = 0;
  DIR* open = opendir(directory);
  while (open != nullptr && readdir(open) != nullptr) ++count;
  if (open != nullptr) closedir(open);
  return count;
}

inline int descriptors() {
  return entries("/proc/self/fd");
}

/// Shared memory of ours that has a name, and so could outlive us: none, as long as regions are memfds.
inline std::set<std::string> named_memory() {
  std::set<std::string> names;
  DIR* open = opendir("/dev/shm");
  while (const dirent* entry = open != nullptr ? readdir(open) : nullptr) {
    const std::string name = entry->d_name;
    if (name.find("shardwise") != std::string::npos) names.insert(name);
  }
  if (open != nullptr) closedir(open);
  return names;
}

/// Mappings of regions that ranks share.
inline int mapped_regions() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:shardwise") != std::string::npos;
  return count;
}

/// Processes that this one has started and not waited for.
inline int children() {
  int count = 0;
  std::error_code gone;  // they come and go
  for (const auto& entry : std::filesystem::directory_iterator("/proc", gone)) {
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    if (!std::getline(file, stat)) continue;
    const size_t name_end = stat.rfind(") ");  // then the state and the parent
    count += name_end != std::string::npos && std::atoi(stat.c_str() + name_end + 4) == getpid();
  }
  return count;
}

/// Bytes of this process's own memory that are in use, after giving back what malloc keeps in reserve.
inline int64_t private_bytes() {
  malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return 1024 * std::atoll(line.c_str() + 8);
  }
  return -1;
}

/// Bytes that back the regions this process has made and still holds.
inline int64_t region_bytes() {
  int64_t bytes = 0;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", gone)) {
    struct stat file {};
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (target.find("memfd:shardwise") == std::string::npos) continue;
    if (stat(entry.path().c_str(), &file) == 0) bytes += 512 * int64_t(file.st_blocks);
  }
  return bytes;
}

}  // namespace shardwise::testing
