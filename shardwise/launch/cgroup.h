// The limits of this process's cgroup, by which containers are often limited.
#pragma once
#include <filesystem>
#include <string>

namespace shardwise::launch {

/// How a limit is read in the directory of a group; a directory without one gives `unlimited`.
struct CgroupLimit {
  std::string controller;  // as in /proc/self/cgroup and below /sys/fs/cgroup
  double (*version_1)(const std::filesystem::path&);
  double (*version_2)(const std::filesystem::path&);
  double unlimited;
};

/// Returns the smallest limit over the process's cgroup and its ancestors. `cgroups` lists the process's
/// groups, whose directories are below `root`. A container may see its own group as the root.
double least_of_cgroups(const CgroupLimit& limit, const std::string& cgroups, const std::string& root);

}  // namespace shardwise::launch
