// A file mapped into memory, read without system calls that copy.
#pragma once
#include <string>

#include "shardwise/base/files.h"

namespace shardwise::text {

class MappedFile {
 public:
  /// Errors: c10::ValueError when the file cannot be opened or mapped. An empty file maps nothing.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  int64_t size() const { return size_; }
  uint64_t fingerprint() const { return file_.fingerprint(); }

  /// Copies bytes [offset, offset + length). Errors: c10::ValueError naming the file when it ends before, as
  /// it has been cut short; only a cut in the very moment of copying is left to SIGBUS.
  void read(int64_t offset, int64_t length, uint8_t* dst) const;

 private:
  base::File file_;  // kept open to see its size
  int64_t size_;
  const uint8_t* map_ = nullptr;
};

}  // namespace shardwise::text
