// The directories of checkpoints: their names, locks and atomic renames. step-N appears only when complete.
//
// Rank 0 alone calls these functions; save.cpp writes the files in the directories.
#pragma once
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/base/fd.h"

namespace shardwise::checkpoint {

/// The longest wait for the lock of a directory: processes of ours hold it for moments, or while they remove
/// what a killed one has left there.
inline constexpr std::chrono::milliseconds kMaxLockWait{60'000};

/// Returns the name of a step's directory, such as `step-100`.
std::string step_name(int64_t step);
/// Returns whether step_name() can return `name`.
bool is_step_name(const std::string& name);
/// Returns the steps of all directories named step-N in `dir`, unordered. Errors: base::FileError.
std::vector<int64_t> steps_in(const std::filesystem::path& dir);

/// Returns the path that every rank writes to before the directory gets its final name:
/// `DIR/.step-100.tmp-4711`. `unique` is a random number, which no earlier or concurrent save has used.
std::filesystem::path temporary_path(const std::filesystem::path& dir, int64_t step, uint64_t unique);

/// Returns the temporary path for a directory `DIR/NAME` that is not a checkpoint step: `DIR/.NAME.tmp-4711`.
std::filesystem::path temporary_sibling(const std::filesystem::path& target, uint64_t unique);
/// Removes the temporary siblings of `target` whose process has exited; warns of those that it cannot remove.
/// Errors: base::FileError.
void remove_stale_siblings(const std::filesystem::path& target);

/// A directory that is being written. Its lock lives as long as this object and marks it as in use, unlike a
/// directory left by a process that exited. The destructor removes the directory unless it was published.
class TemporaryDirectory {
 public:
  /// Errors: base::FileError if the directory exists or cannot be created, or if another process has the lock
  /// of its parent after `max_wait`.
  explicit TemporaryDirectory(std::filesystem::path path, std::chrono::milliseconds max_wait = kMaxLockWait);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  /// Syncs the directory and renames it to `target`. Exchanges it atomically with an existing `target`, which
  /// the destructor then removes. Errors: base::FileError; c10::Error if `target` exists on a file system
  /// that cannot exchange two directories. Unless the error is in syncing the new name, nothing has changed.
  void publish(const std::filesystem::path& target);
  /// Syncs the directory and renames it to `target` if that does not exist yet; otherwise changes nothing and
  /// returns false. Errors: base::FileError.
  bool publish_new(const std::filesystem::path& target);

 private:
  std::filesystem::path path_;
  base::Fd lock_;
};

/// Points the link DIR/latest to the step's directory atomically. Errors: base::FileError, also if another
/// process has the lock of DIR after `max_wait`.
void point_latest(const std::filesystem::path& dir, int64_t step,
                  std::chrono::milliseconds max_wait = kMaxLockWait);

/// Removes the incomplete directories and links in `dir`, if it exists, whose process has exited; warns of
/// directories that it cannot remove. Errors: base::FileError.
void remove_stale(const std::filesystem::path& dir);

/// Removes all but `keep` step directories (0 removes none). Keeps `current` and the highest steps below it;
/// removes steps above it, which belong to an abandoned run, first and with a warning. What it cannot remove,
/// such as a write-protected step, is a warning too.
void prune(const std::filesystem::path& dir, int64_t current, int64_t keep);

}  // namespace shardwise::checkpoint
