// A file that is mapped into memory for reading.
#pragma once
#include <string>

#include "shardwise/base/files.h"

namespace shardwise::base {

/// A read-only memory mapping of a file.
class MappedFile {
 public:
  /// Throws c10::ValueError if the file cannot be opened or mapped. An empty file is valid and is not mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  int64_t size() const { return size_; }
  /// Returns the first byte, at an address that is a multiple of the page size; null for an empty file.
  /// Reading beyond the end of a file that was truncated since raises SIGBUS.
  const uint8_t* data() const { return map_; }
  uint64_t fingerprint() const { return file_.fingerprint(); }

  /// Copies bytes [offset, offset + length). Throws c10::ValueError naming the file if it was truncated
  /// before the end of the range. A truncation during the copy raises SIGBUS.
  void read(int64_t offset, int64_t length, uint8_t* dst) const;

 private:
  File file_;  // kept open to query its current size
  int64_t size_;
  const uint8_t* map_ = nullptr;
};

}  // namespace shardwise::base
