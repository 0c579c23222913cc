// Reading safetensors: one file, or a directory of them as Hugging Face lays it out.
//
// Everything is validated on opening; after that only the bytes asked for are read (pread, no mapping), so a
// rank reads its own slice of a large model. Slices along a dim are slices.h's.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "shardwise/base/files.h"
#include "shardwise/io/header.h"

namespace shardwise::io {

/// One open file. Const use is safe from several threads.
class SafetensorsFile {
 public:
  /// Errors: c10::ValueError when it cannot be opened or breaks the format.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const Metadata& metadata() const { return layout_.metadata; }
  const std::vector<TensorInfo>& tensors() const { return layout_.tensors; }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  /// Errors: c10::ValueError naming file and tensor when there is none.
  const TensorInfo& find(const std::string& name) const;

  /// Bytes [offset, offset + length) of `tensor`, counted from its first.
  /// Errors: c10::ValueError when the file has shrunk or cannot be read.
  void read(const TensorInfo& tensor, int64_t offset, int64_t length, void* dst) const;
  void read_whole(const TensorInfo& tensor, void* dst) const { read(tensor, 0, tensor.bytes(), dst); }

  /// Asked of the system so far, the header included.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  base::File file_;
  Layout layout_;
  std::unordered_map<std::string, size_t> index_;
  mutable std::atomic<int64_t> bytes_read_;
};

/// The files that SafetensorsDirectory(directory) reads, the index among them, without looking into the
/// tensors'. Errors: c10::ValueError when neither is there, or the index is damaged.
std::vector<std::string> files_of(const std::string& directory);

/// A model directory: `model.safetensors`, or the files that `model.safetensors.index.json` names.
class SafetensorsDirectory {
 public:
  /// Where a tensor is.
  struct Place {
    const SafetensorsFile* file;
    const TensorInfo* tensor;
  };

  /// Errors: c10::ValueError when neither is there, a file of the index is missing, or index and files
  /// disagree about a tensor.
  explicit SafetensorsDirectory(const std::string& directory);

  /// All names, sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return places_.count(name) != 0; }
  /// Errors: c10::ValueError naming directory and tensor when there is none.
  Place find(const std::string& name) const;
  /// Of all files so far, headers and index included.
  int64_t bytes_read() const;

 private:
  void open_indexed(const std::string& index_path);

  std::string directory_;
  std::map<std::string, SafetensorsFile> files_;  // by file name; nodes never move
  std::map<std::string, Place> places_;
  int64_t index_bytes_ = 0;
};

}  // namespace shardwise::io
