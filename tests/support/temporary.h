// A temporary directory that is removed on destruction.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "shardwise/base/files.h"

namespace shardwise::test {

class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_(base::make_temporary_directory("shardwise-test-")) {}
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!is_kept_) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  /// Keeps the directory after destruction.
  void keep() { is_kept_ = true; }

  /// Writes a file (and the directories above it) and returns its path.
  std::string put(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = *this / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }

 private:
  std::string path_;
  bool is_kept_ = false;
};

/// Returns a file's contents, read without our own code.
inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace shardwise::test
