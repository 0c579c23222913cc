// What this process holds of the system: counted before and after, to see that nothing stays behind.
#pragma once
#include <dirent.h>

#include <fstream>
#include <set>
#include <string>

namespace shardwise::testing {

inline int entries(const char* folder) {
  int count = 0;
  DIR* open = opendir(folder);
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

}  // namespace shardwise::testing
