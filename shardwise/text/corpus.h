// Many files as one run of bytes, addressed by offset. Nothing is copied until it is read.
#pragma once
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <vector>

namespace shardwise::text {

/// The bytes of files in a fixed order: as given, a folder's own recursively and sorted by path.
/// Files are mapped when first read, at most kMostMaps at a time (the least recently read goes), and their
/// descriptors closed at once; hidden entries (.name) of a folder are left out. Any bytes are text.
class Corpus {
 public:
  static constexpr size_t kMostMaps = 1024;

  /// Errors: c10::ValueError when there is no path, one cannot be read, is neither file nor folder, or no
  /// byte is found in all of them.
  explicit Corpus(const std::vector<std::string>& paths);
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  /// Bytes of all files.
  int64_t size() const { return size_; }
  int64_t file_count() const { return static_cast<int64_t>(files_.size()); }

  /// Copies bytes [offset, offset + length), across files where need be. Safe from several threads.
  /// Errors: c10::ValueError when a file has changed its size since; out-of-range is the caller's too.
  void read(int64_t offset, int64_t length, uint8_t* dst) const;

 private:
  struct Source {
    std::string path;
    int64_t begin, size;
    const uint8_t* map = nullptr;
    std::list<size_t>::iterator recency;
  };
  void add_path(const std::string& path);
  void add_folder(const std::string& folder);
  void add_file(const std::string& path);
  const uint8_t* mapped(size_t index) const;
  void unmap_oldest() const;

  mutable std::mutex mutex_;
  mutable std::vector<Source> files_;      // empty ones left out
  mutable std::list<size_t> most_recent_;  // indices of mapped files, latest first
  int64_t size_ = 0;
};

}  // namespace shardwise::text
