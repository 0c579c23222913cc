// A model's directory in the making, beside the place where it will be: whole there in one step, or not at
// all.
#pragma once
#include <filesystem>
#include <string>

#include "shardwise/checkpoint/directories.h"

namespace shardwise::checkpoint {

/// Where `out` will be. Errors: c10::ValueError beginning with `op` when something is there, or the directory
/// around it is not.
std::filesystem::path free_target(const std::string& op, const std::filesystem::path& out);

/// Copies what belongs to a model beside its weights: config.json, tokenizer and generation files.
void copy_companions(const std::filesystem::path& in, const std::filesystem::path& out);

/// Removed with this unless published.
class NewDirectory {
 public:
  /// Removes first what dead processes left of it. Errors: base::FileError.
  NewDirectory(std::string op, std::filesystem::path target);

  const std::filesystem::path& path() const { return path_; }
  /// Errors: c10::ValueError when something has the target's name by now; base::FileError.
  void publish();

 private:
  std::string op_;
  std::filesystem::path target_, path_;
  TemporaryDirectory directory_;
};

}  // namespace shardwise::checkpoint
