// The header of a safetensors file: 8 bytes of length, then JSON, which names every tensor and its place.
//
// Arithmetic and parsing only; opening, reading and writing files is safetensors.h's and writer.h's.
// Format: https://huggingface.co/docs/safetensors
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shardwise/io/dtype.h"

namespace shardwise::io {

/// The file's free-text part ("__metadata__").
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

/// A whole file's plan: what parse_header found, or what plan_file decided.
struct Layout {
  std::vector<TensorInfo> tensors;  // in file order: end of one is begin of the next
  Metadata metadata;
  int64_t header_bytes = 0;  // with the 8 of the length
  int64_t total_bytes = 0;   // of the file
  /// Errors: c10::ValueError when there is none of that name.
  const TensorInfo& find(const std::string& name) const;
};

/// Where each tensor goes: wider elements first, otherwise in the order given, so that each is aligned to its
/// element and the same specs give the same file everywhere.
/// Errors: c10::ValueError for a doubled name, a negative dim or a size beyond 63 bits.
Layout plan_file(const std::vector<TensorSpec>& tensors, const Metadata& metadata = {});

/// The bytes a file of this layout begins with; tensors start at a multiple of 8.
std::string header_text(const Layout& layout);

/// Bytes of the JSON from the first 8 bytes of a file.
/// Errors: c10::ValueError unless the file can hold it and it is at most 100 MB.
int64_t header_length(const unsigned char (&first8)[8], int64_t file_bytes, const std::string& path);

/// The layout that `json` describes, everything checked: tensors fill the file from the header to its last
/// byte without gap or overlap, each of shape x dtype bytes, no name twice. Errors: c10::ValueError.
Layout parse_header(const std::string& json, int64_t file_bytes, const std::string& path);

}  // namespace shardwise::io
