// A file that appears at its path only when it is complete: it is written under a temporary name and renamed.
//
// The temporary file is locked while it is written. One without a lock is that of a process that was killed,
// and the next AtomicFile for the same path removes it. On a file system without locks nothing is removed.
#pragma once
#include <string>

#include "shardwise/base/files.h"

namespace shardwise::base {

/// Returns a name in the directory of `path` that no other file has: `path`.tmp and 20 random digits.
std::string temporary_beside(const std::string& path);

class AtomicFile {
 public:
  /// Removes stale temporary files of `path` and creates a new one. Errors: FileError.
  explicit AtomicFile(const std::string& path) : AtomicFile(path, temporary_beside(path)) {}
  /// The same with the path of the temporary file, from temporary_beside().
  AtomicFile(std::string path, std::string temporary);
  /// Removes the temporary file unless it was published.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const File& file() const { return file_; }
  /// Syncs the file and renames it to the path, where it may replace another file. Errors: FileError.
  void publish();

 private:
  std::string path_, temporary_;
  File file_;
  bool is_published_ = false;
};

}  // namespace shardwise::base
