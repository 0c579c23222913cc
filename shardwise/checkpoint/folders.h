// The names in a save folder and how they change: step-N appears whole, in one step, or not at all.
//
// One process does all of this (rank 0); what the folders hold is save.cpp's.
#pragma once
#include <filesystem>
#include <string>

namespace shardwise::checkpoint {

/// `step-100`.
std::string step_name(int64_t step);

/// Where every rank writes before the folder gets its name: `DIR/.step-100.tmp-4711`.
/// `writer` tells apart the processes that may be saving at once (a process id).
std::filesystem::path temporary_path(const std::filesystem::path& dir, int64_t step, int64_t writer);

/// A folder that is being written. Locked while this lives, so that others can tell it from one that a dead
/// process left behind; removed unless published.
class TemporaryFolder {
 public:
  /// Errors: base::FileError when it exists or cannot be made.
  explicit TemporaryFolder(std::filesystem::path path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Syncs the folder and gives it the name `target`. What has that name already changes places with it in
  /// the same instant and is removed afterwards. Errors: base::FileError; then nothing has changed.
  void publish(const std::filesystem::path& target);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Makes DIR/latest name the step's folder, in one step. Errors: base::FileError; then nothing has changed.
void point_latest(const std::filesystem::path& dir, int64_t step);

/// Removes what dead processes left half-written in `dir`, if that is there. Errors: base::FileError.
void remove_stale(const std::filesystem::path& dir);

/// Removes all but `keep` step folders (0 removes none): `current` and the highest ones below it stay, those
/// above it (a run that was given up) go first. Errors: base::FileError.
void prune(const std::filesystem::path& dir, int64_t current, int64_t keep);

}  // namespace shardwise::checkpoint
