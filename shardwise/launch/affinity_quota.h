// The CPU quota of this process's cgroup: containers are often limited by a quota rather than by a set of
// cores.
#pragma once
#include <string>

namespace shardwise::launch {

/// Returns the quota in CPUs: the smallest over the process's cgroup and its ancestors; very large if there
/// is none. Reads the files of cgroup versions 1 and 2 below `root`. A container may see its own group as the
/// root.
double cpu_quota(const std::string& cgroups = "/proc/self/cgroup",
                 const std::string& root = "/sys/fs/cgroup");

}  // namespace shardwise::launch
