// Writing one safetensors file from several processes.
//
// All processes plan the same layout (header.h: plan_file). One creates the file at its full size, then all
// write their shards and sync. The caller adds the barrier between the two and renames the file.
#pragma once
#include <string>

#include "shardwise/base/files.h"
#include "shardwise/io/header.h"

namespace shardwise::io {

/// A safetensors file that is being written.
class SafetensorsWriter {
 public:
  /// Creates `path`, which must not exist, allocates its disk blocks and writes the header. Only one process
  /// may call this. Errors: base::FileError (disk full, no permission, already exists); no file is left.
  static SafetensorsWriter create(const std::string& path, FileLayout layout);

  /// Opens a file that another process has created with the same layout.
  /// Errors: base::FileError if it cannot be opened or its size differs from the layout's.
  static SafetensorsWriter open(const std::string& path, FileLayout layout);

  const FileLayout& layout() const { return layout_; }
  const std::string& path() const { return file_.path(); }

  /// Writes `length` bytes at byte `offset` of `tensor` (one of layout().tensors). Errors: base::FileError.
  void write(const TensorInfo& tensor, int64_t offset, int64_t length, const void* src) const;
  void write_tensor(const TensorInfo& tensor, const void* src) const {
    write(tensor, 0, tensor.bytes(), src);
  }

  /// Flushes to the disk everything that any process has written to the file so far.
  void sync() const { file_.sync(); }

 private:
  SafetensorsWriter(base::File file, FileLayout layout)
      : file_(std::move(file)), layout_(std::move(layout)) {}

  base::File file_;
  FileLayout layout_;
};

}  // namespace shardwise::io
