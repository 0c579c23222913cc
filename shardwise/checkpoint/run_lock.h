// The lock of a directory into which one run at a time may save.
#pragma once
#include <chrono>
#include <filesystem>

#include "shardwise/base/fd.h"

namespace shardwise::checkpoint {

/// Held by rank 0 of a run that saves into a directory: the kernel releases it when the process exits,
/// however it exits. The file `.lock` in the directory names the process and stays there.
class RunLock {
 public:
  /// Its name in the directory.
  static constexpr const char* kFile = ".lock";
  /// Long enough for the kernel to remove the process of a run that was killed.
  static constexpr std::chrono::milliseconds kMaxWait{2000};

  /// Waits up to `max_wait` for the lock. Warns if the file system has no locks. Errors: c10::ValueError
  /// naming the process that has the lock; base::FileError if the file cannot be opened or written.
  explicit RunLock(const std::filesystem::path& directory, std::chrono::milliseconds max_wait = kMaxWait);

 private:
  base::Fd file_;
};

}  // namespace shardwise::checkpoint
