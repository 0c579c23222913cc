// A model directory that appears at its final path only when it is complete: it is written under a temporary
// name and renamed.
#pragma once
#include <filesystem>
#include <string>

#include "shardwise/checkpoint/directories.h"

namespace shardwise::checkpoint {

/// Returns the absolute, normalized path of `out`. Errors: c10::ValueError beginning with `op` if `out`
/// exists or its parent directory does not.
std::filesystem::path new_target_path(const std::string& op, const std::filesystem::path& out);

/// Copies config.json and the tokenizer and generation files of a model directory.
void copy_auxiliary_files(const std::filesystem::path& in, const std::filesystem::path& out);

/// A directory under a temporary name. The destructor removes it unless publish() has renamed it.
class AtomicDirectory {
 public:
  /// Creates the temporary directory after removing those that exited processes left for the same target.
  /// Errors: base::FileError.
  AtomicDirectory(std::string op, std::filesystem::path target);

  const std::filesystem::path& path() const { return path_; }
  /// Renames the directory to the target. Errors: c10::ValueError if the target exists by now;
  /// base::FileError.
  void publish();

 private:
  std::string op_;
  std::filesystem::path target_, path_;
  TemporaryDirectory directory_;
};

}  // namespace shardwise::checkpoint
