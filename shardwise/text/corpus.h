// Concatenates files to one sequence of bytes, addressed by offset. Bytes are copied only when read.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shardwise/base/hash.h"
#include "shardwise/base/mapped_file.h"

namespace shardwise::text {

/// The bytes of files in a fixed order: as given, and sorted by path within a directory (recursive). Skips
/// hidden entries (.name) of directories. Maps a file when it is first read and keeps at most kMaxOpenFiles
/// open, closing the least recently read. Files may contain any bytes.
class Corpus {
 public:
  static constexpr size_t kMaxOpenFiles = 128;

  /// Throws c10::ValueError if `paths` is empty, a path is not a readable file or directory, or all files are
  /// empty.
  explicit Corpus(const std::vector<std::string>& paths);
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  /// The total number of bytes.
  int64_t size() const { return size_; }
  int64_t file_count() const { return static_cast<int64_t>(files_.size()); }
  /// The number of bytes of file `index`. Empty files are not counted as files.
  int64_t file_size(int64_t index) const { return files_.at(index).size; }
  const std::string& file_path(int64_t index) const { return files_.at(index).path; }
  /// The paths of all nonempty files.
  std::vector<std::string> paths() const;

  /// A hash of the files' inodes, sizes and modification times at construction. Ranks compare it to check
  /// that they read the same text.
  uint64_t fingerprint() const { return fingerprint_; }

  /// Copies bytes [offset, offset + length), across file boundaries. Thread-safe.
  /// Throws c10::ValueError if the range is out of bounds, and naming the file if it became shorter or
  /// changed since it was scanned.
  void read(int64_t offset, int64_t length, uint8_t* dst) const;
  /// Returns the bytes of file `index`. Errors: as read()'s.
  std::string read_file(int64_t index) const;

 private:
  struct Source {
    std::string path;
    int64_t begin, size;
    uint64_t fingerprint;
    std::unique_ptr<base::MappedFile> open;
    std::list<size_t>::iterator recency;
  };
  void add_path(const std::string& path);
  void add_directory(const std::string& directory);
  void add_file(const std::string& path);
  const base::MappedFile& opened(size_t index) const;

  mutable std::mutex mutex_;
  mutable std::vector<Source> files_;      // without empty files
  mutable std::list<size_t> most_recent_;  // indices of open files, most recently read first
  int64_t size_ = 0;
  uint64_t fingerprint_ = base::kHashBegin;
};

}  // namespace shardwise::text
