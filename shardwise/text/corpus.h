// Many files as one run of bytes, addressed by offset. Nothing is copied until it is read.
#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shardwise/text/mapped_file.h"

namespace shardwise::text {

/// The bytes of files in a fixed order: as given, a directory's own recursively and sorted by path.
/// Files are mapped when first read, at most kMostOpen at a time (the least recently read is closed); hidden
/// entries (.name) of a directory are left out. Any bytes are text.
class Corpus {
 public:
  static constexpr size_t kMostOpen = 128;

  /// Errors: c10::ValueError when there is no path, one cannot be read, is neither file nor directory, or no
  /// byte is found in all of them.
  explicit Corpus(const std::vector<std::string>& paths);
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  /// Bytes of all files.
  int64_t size() const { return size_; }
  int64_t file_count() const { return static_cast<int64_t>(files_.size()); }
  /// Bytes of file `index`, which follow those of the files before it; empty files are left out.
  int64_t file_size(int64_t index) const { return files_.at(index).size; }
  const std::string& file_path(int64_t index) const { return files_.at(index).path; }
  /// Of all files that are read.
  std::vector<std::string> paths() const;

  /// A hash of the files' inodes, sizes and times of last change as they were scanned: ranks that have
  /// scanned the same text agree on it.
  uint64_t fingerprint() const { return fingerprint_; }

  /// Copies bytes [offset, offset + length), across files where need be. Safe from several threads.
  /// Errors: c10::ValueError naming the file when it has become shorter, or is opened (again) and no longer
  /// what was scanned; out-of-range is the caller's too.
  void read(int64_t offset, int64_t length, uint8_t* dst) const;
  /// All of file `index`. Errors: the same.
  std::string read_file(int64_t index) const;

 private:
  struct Source {
    std::string path;
    int64_t begin, size;
    uint64_t fingerprint;
    std::unique_ptr<MappedFile> open;
    std::list<size_t>::iterator recency;
  };
  void add_path(const std::string& path);
  void add_directory(const std::string& directory);
  void add_file(const std::string& path);
  const MappedFile& opened(size_t index) const;

  mutable std::mutex mutex_;
  mutable std::vector<Source> files_;      // empty ones left out
  mutable std::list<size_t> most_recent_;  // indices of open files, latest first
  int64_t size_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace shardwise::text
