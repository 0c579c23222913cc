// Tells a process from its forks, which inherit its objects but not its threads, and share its shared memory.
#pragma once
#include <atomic>
#include <cstdint>

namespace shardwise::base {

/// Remembers the process that constructs it.
class ProcessMark {
 public:
  /// Errors: c10::Error if the system cannot count forks (no memory).
  ProcessMark();
  /// Returns whether this process is a fork of the one that constructed the mark. A load: calls may be
  /// checked one by one, which getpid, a system call, would slow down.
  bool is_fork() const { return depth_ != fork_depth.load(std::memory_order_relaxed); }

 private:
  static std::atomic<uint32_t> fork_depth;  // forks between the start of the program and this process
  static void count_fork() { fork_depth.fetch_add(1, std::memory_order_relaxed); }

  uint32_t depth_;
};

}  // namespace shardwise::base
