// Writing one safetensors file from several processes.
//
// All plan the same layout (header.h: plan_file), one creates the file at its full size, all write their own
// bytes, each syncs. When who may begin is known (a barrier) is the caller's; so is giving the file its final
// name.
#pragma once
#include <string>

#include "shardwise/base/files.h"
#include "shardwise/io/header.h"

namespace shardwise::io {

class SafetensorsWriter {
 public:
  /// Creates `path`, which must not exist, takes all its room on the disk and writes the header: for one
  /// process. Errors: base::FileError (no room, no permission, exists already); nothing is left behind.
  static SafetensorsWriter create(const std::string& path, Layout layout);

  /// Opens a file that another process has created with the same layout.
  /// Errors: base::FileError when it cannot be opened or has another size.
  static SafetensorsWriter open(const std::string& path, Layout layout);

  const Layout& layout() const { return layout_; }
  const std::string& path() const { return file_.path(); }

  /// Puts `length` bytes at byte `offset` of `tensor` (one of layout().tensors).
  /// Errors: base::FileError when the disk refuses.
  void write(const TensorInfo& tensor, int64_t offset, int64_t length, const void* src) const;
  void write_whole(const TensorInfo& tensor, const void* src) const { write(tensor, 0, tensor.bytes(), src); }

  /// Returns once what any process wrote to the file so far is on the disk.
  void sync() const { file_.sync(); }

 private:
  SafetensorsWriter(base::File file, Layout layout) : file_(std::move(file)), layout_(std::move(layout)) {}

  base::File file_;
  Layout layout_;
};

}  // namespace shardwise::io
