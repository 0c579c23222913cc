// Reading safetensors: one file, or a model directory in Hugging Face's layout.
//
// Opening validates everything. After that only the requested bytes are read (pread, no mmap), so a rank
// reads only its slice of a large model. slices.h reads slices along a dim.
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

/// One open file. Const methods are thread-safe.
class SafetensorsFile {
 public:
  /// Opens and validates `path`. Errors: c10::ValueError if it cannot be opened or violates the format.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const Metadata& metadata() const { return layout_.metadata; }
  const std::vector<TensorInfo>& tensors() const { return layout_.tensors; }
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  /// Returns the tensor `name`. Errors: c10::ValueError naming file and tensor if it does not exist.
  const TensorInfo& find(const std::string& name) const;

  /// Reads the bytes [offset, offset + length) of `tensor`.
  /// Errors: c10::ValueError if the file was truncated or cannot be read.
  void read(const TensorInfo& tensor, int64_t offset, int64_t length, void* dst) const;
  void read_tensor(const TensorInfo& tensor, void* dst) const { read(tensor, 0, tensor.bytes(), dst); }

  /// Returns the bytes read so far, including the header.
  int64_t bytes_read() const { return bytes_read_; }

 private:
  base::File file_;
  FileLayout layout_;
  std::unordered_map<std::string, size_t> index_;
  mutable std::atomic<int64_t> bytes_read_;
};

/// Returns the files that SafetensorsDirectory(directory) reads, including the index, without opening the
/// tensor files. Errors: c10::ValueError if the directory has neither layout, or the index is damaged.
std::vector<std::string> files_of(const std::string& directory);

/// A model directory: `model.safetensors`, or the files that `model.safetensors.index.json` lists.
class SafetensorsDirectory {
 public:
  /// A tensor and the file that contains it.
  struct Location {
    const SafetensorsFile* file;
    const TensorInfo* tensor;
  };

  /// Opens and validates all files. Errors: c10::ValueError if the directory has neither layout, a file of
  /// the index is missing, or the index and the files disagree about a tensor.
  explicit SafetensorsDirectory(const std::string& directory);

  /// Returns all tensor names, sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return locations_.count(name) != 0; }
  /// Returns the tensor `name` and its file. Errors: c10::ValueError naming directory and missing tensor.
  Location find(const std::string& name) const;
  /// Returns the bytes read so far from all files, including the headers and the index.
  int64_t bytes_read() const;

 private:
  void open_indexed(const std::string& index_path);

  std::string directory_;
  std::map<std::string, SafetensorsFile> files_;  // by file name; Location points into its nodes
  std::map<std::string, Location> locations_;
  int64_t index_bytes_ = 0;
};

}  // namespace shardwise::io
