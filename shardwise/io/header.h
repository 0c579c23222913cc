// The header of a safetensors file: 8 bytes of length, then JSON with every tensor's byte range.
//
// Arithmetic and parsing only; safetensors.h and writer.h open, read and write files.
// Format: https://huggingface.co/docs/safetensors
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shardwise/io/dtype.h"

namespace shardwise::io {

/// The file's "__metadata__": a map from string to string.
using Metadata = std::map<std::string, std::string>;

/// A tensor to be written.
struct TensorSpec {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  bool operator==(const TensorSpec&) const = default;
};

/// A tensor in a file, row-major, at bytes [begin, end) of the file.
struct TensorInfo {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
  int64_t bytes() const { return end - begin; }
  bool operator==(const TensorInfo&) const = default;
};

/// The layout of a file, from parse_header or plan_file.
struct FileLayout {
  std::vector<TensorInfo> tensors;  // in file order; each one begins where the previous one ends
  Metadata metadata;
  int64_t header_bytes = 0;  // including the 8 bytes of length
  int64_t total_bytes = 0;   // of the file
  /// Returns the tensor `name`. Errors: c10::ValueError if there is no such tensor.
  const TensorInfo& find(const std::string& name) const;
};

/// Lays out a new file: tensors with wider elements first, otherwise in the given order. So each tensor is
/// aligned to its element size, and equal specs give the same file on every process. The first one begins at
/// a multiple of `alignment` bytes, itself a multiple of 8. Errors: c10::ValueError for a duplicate name, a
/// negative dim or a size beyond 63 bits.
FileLayout plan_file(const std::vector<TensorSpec>& tensors, const Metadata& metadata = {},
                     int64_t alignment = 8);

/// Returns the header bytes of a file with this layout, padded with spaces.
std::string header_text(const FileLayout& layout);

/// Returns the length of the JSON from the first 8 bytes of a file.
/// Errors: c10::ValueError unless the JSON fits into the file and has at most base::kMaxJsonBytes. That is
/// less than the 100 MB of the reference implementation, and far more than the header of any published model.
int64_t header_length(const unsigned char (&first8)[8], int64_t file_bytes, const std::string& path);

/// Parses and validates a header: the tensors fill the file from the header to its last byte without gaps or
/// overlaps, each has shape x dtype bytes, and names are unique. Errors: c10::ValueError.
FileLayout parse_header(const std::string& json, int64_t file_bytes, const std::string& path);

}  // namespace shardwise::io
