// An operation in a stream: a kernel, or a function of the host such as a copy.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tests/support/emulator/sanitizers.h"

namespace shardwise::emulator {

/// The blocks of a kernel.
struct Grid {
  dim3 blocks, threads;
  std::vector<unsigned> to_start = {};  // numbers of blocks; the last is started next
  unsigned running = 0;                 // blocks
};

/// Runs after the operations that its stream and events put before it.
struct Operation {
  std::vector<std::shared_ptr<Operation>> after;
  std::function<void()> body;  // of each thread of a kernel; may be empty
  std::optional<Grid> grid;    // of a kernel
  bool is_started = false, is_done = false;
  SyncPoint queued, ended;

  /// Orders the running code after this operation's predecessors, and those who wait for it after the running
  /// code.
  void acquire() {
    queued.acquire();
    for (const auto& before : after) before->ended.acquire();
  }
  void release() { ended.release(); }
  /// Frees its predecessors, so that a stream does not keep all of its operations.
  void finish() {
    is_done = true;
    after.clear();
  }
};

}  // namespace shardwise::emulator
