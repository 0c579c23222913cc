// The names in a save directory and how they change: step-N appears whole, in one step, or not at all.
//
// One process does all of this (rank 0); what the directories hold is save.cpp's.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/base/fd.h"

namespace shardwise::checkpoint {

/// `step-100`.
std::string step_name(int64_t step);
/// The steps of all directories of such a name in `dir`, in no order. Errors: base::FileError.
std::vector<int64_t> steps_in(const std::filesystem::path& dir);

/// Where every rank writes before the directory gets its name: `DIR/.step-100.tmp-4711`.
/// `writer` tells apart the processes that may be saving at once (a process id).
std::filesystem::path temporary_path(const std::filesystem::path& dir, int64_t step, int64_t writer);

/// The same for a directory that is no checkpoint's step: `DIR/.NAME.tmp-4711` beside `DIR/NAME`.
std::filesystem::path temporary_beside(const std::filesystem::path& target, int64_t writer);
/// Removes what dead processes left of such directories. Errors: base::FileError.
void remove_stale_beside(const std::filesystem::path& target);

/// A directory that is being written. Locked while this lives, so that others can tell it from one that a
/// dead process left behind; removed unless published.
class TemporaryDirectory {
 public:
  /// Errors: base::FileError when it exists or cannot be made.
  explicit TemporaryDirectory(std::filesystem::path path);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  /// Syncs the directory and gives it the name `target`. What has that name already changes places with it in
  /// the same instant and is removed with this. Errors: base::FileError, c10::Error where `target` exists on
  /// a file system that cannot exchange two directories; but for one in syncing the new name, nothing has
  /// changed.
  void publish(const std::filesystem::path& target);
  /// The same where nothing has that name yet; false, and nothing has changed, where something has by now.
  bool publish_new(const std::filesystem::path& target);

 private:
  std::filesystem::path path_;
  base::Fd lock_;
};

/// Makes DIR/latest name the step's directory, in one step. Errors: base::FileError.
void point_latest(const std::filesystem::path& dir, int64_t step);

/// Removes what dead processes left half-written in `dir`, if that is there. Errors: base::FileError.
void remove_stale(const std::filesystem::path& dir);

/// Removes all but `keep` step directories (0 removes none): `current` and the highest ones below it stay,
/// those above it (a run that was given up) go first. Errors: base::FileError.
void prune(const std::filesystem::path& dir, int64_t current, int64_t keep);

}  // namespace shardwise::checkpoint
