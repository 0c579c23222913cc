// The files of a model directory as bytes, written and read without the code under test.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "shardwise/config/config.h"
#include "tests/support/temporary.h"

namespace shardwise::testing {

/// A tensor of a safetensors file.
struct Stored {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  bool operator==(const Stored&) const = default;
};
using StoredTensors = std::map<std::string, Stored>;

/// Returns the bytes of a file with these tensors. Those whose bytes are a multiple of `alignment` come first
/// and begin at multiples of it.
std::string safetensors_of(const StoredTensors& tensors, size_t alignment = 1);
StoredTensors read_safetensors(const std::string& path);

/// Returns random bytes for each tensor of the config's files.
StoredTensors random_tensors(const config::Config& config, const std::string& dtype);

/// The sizes of a safetensors file and of its header.
struct FileBytes {
  int64_t header, all;
};
/// Writes a model directory with config.json and fp32 zeros as weights, in a sparse file.
FileBytes put_zeros(const std::string& directory, const config::Config& config);

/// Returns the contents of every file below `directory`, by relative path.
std::map<std::string, std::string> files_in(const std::string& directory);

}  // namespace shardwise::testing
