// The memory that this host has left for a process.
#pragma once
#include <cstdint>
#include <string>

namespace shardwise::launch {

/// Returns the bytes that processes of this cgroup can still allocate: what Linux estimates to be available,
/// and no more than the smallest limit of the cgroup and its ancestors leaves. Page cache that can be dropped
/// counts as available. Reads the files of cgroup versions 1 and 2 below `root`.
int64_t available_memory(const std::string& meminfo = "/proc/meminfo",
                         const std::string& cgroups = "/proc/self/cgroup",
                         const std::string& root = "/sys/fs/cgroup");

}  // namespace shardwise::launch
