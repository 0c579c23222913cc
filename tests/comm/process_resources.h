// Counts of this process's system resources, which tests compare to find leaks.
#pragma once
#include <dirent.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
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

/// Returns the shared-memory objects with a name, which could outlive their processes. There are none:
/// regions are memfds.
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

/// Returns the number of mapped shared-memory regions.
inline int mapped_regions() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:shardwise") != std::string::npos;
  return count;
}

/// Returns the number of child processes that this one has not waited for.
inline int children() {
  int count = 0;
  std::error_code ignored;  // processes exit during the loop
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    if (!std::getline(file, stat)) continue;
    const size_t name_end = stat.rfind(") ");  // the state and the parent's pid follow
    count += name_end != std::string::npos && std::atoi(stat.c_str() + name_end + 4) == getpid();
  }
  return count;
}

/// Returns true if a process on this machine has the socket in the abstract namespace.
inline bool has_abstract_socket(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  const std::string text{std::istreambuf_iterator<char>(sockets), {}};
  return text.find("@" + name) != std::string::npos;
}

/// Returns the private memory in use, in bytes, after malloc has returned its free memory.
inline int64_t private_bytes() {
  malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return 1024 * std::atoll(line.c_str() + 8);
  }
  return -1;
}

/// Returns the bytes that back the shared-memory regions that this process has created and not closed.
inline int64_t region_bytes() {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    struct stat file {};
    const std::string target = std::filesystem::read_symlink(entry, ignored).string();
    if (target.find("memfd:shardwise") == std::string::npos) continue;
    if (stat(entry.path().c_str(), &file) == 0) bytes += 512 * int64_t(file.st_blocks);
  }
  return bytes;
}

/// The resources of this process at one time.
struct Resources {
  int descriptors = testing::descriptors();
  int regions = mapped_regions();
  int children = testing::children();
  std::set<std::string> named = named_memory();
  int64_t private_bytes = testing::private_bytes();
  int64_t region_bytes = testing::region_bytes();
};

/// The freed memory that a sanitizer's runtime keeps, by default, so that later uses of it show.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int64_t kQuarantineBytes = 256 << 20;
#else
inline constexpr int64_t kQuarantineBytes = 0;
#endif

/// The bytes by which memory may grow.
struct Allowance {
  int64_t private_bytes = 0;
  int64_t region_bytes = 0;
};

/// Returns what has grown, or an empty string.
inline std::string growth(const Resources& before, const Resources& now, const Allowance& allowance) {
  std::ostringstream text;
  const auto add = [&](const char* what, int64_t old, int64_t current) {
    text << " " << what << " " << old << " -> " << current;
  };
  if (now.descriptors > before.descriptors) add("descriptors", before.descriptors, now.descriptors);
  if (now.regions > before.regions) add("regions", before.regions, now.regions);
  if (now.children > before.children) add("children", before.children, now.children);
  if (now.named != before.named) add("named memory", int64_t(before.named.size()), int64_t(now.named.size()));
  if (now.private_bytes > before.private_bytes + allowance.private_bytes)
    add("private bytes", before.private_bytes, now.private_bytes);
  if (now.region_bytes > before.region_bytes + allowance.region_bytes)
    add("region bytes", before.region_bytes, now.region_bytes);
  return text.str();
}

}  // namespace shardwise::testing
