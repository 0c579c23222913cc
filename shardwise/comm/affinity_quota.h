// How much CPU time the process's cgroup may use: containers are often limited by a quota, not by a set of
// cores.
#pragma once
#include <string>

namespace shardwise::comm {

/// CPUs' worth of time: the least quota of the process's cgroup and those above it; very large without any.
/// Reads both versions' files below `root`, which in a container may show the own group as the topmost.
double cpu_quota(const std::string& cgroups = "/proc/self/cgroup",
                 const std::string& root = "/sys/fs/cgroup");

}  // namespace shardwise::comm
