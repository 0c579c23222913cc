// A model's directory as bytes: written and read without the code under test.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "shardwise/model/config.h"
#include "tests/support/temporary.h"

namespace shardwise::testing {

/// A tensor as a safetensors file has it.
struct Stored {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  bool operator==(const Stored&) const = default;
};
using StoredTensors = std::map<std::string, Stored>;

/// The bytes of a file of these tensors.
std::string safetensors_of(const StoredTensors& tensors);
StoredTensors read_safetensors(const std::string& path);

/// Random bytes for each tensor of the config's files.
StoredTensors random_tensors(const model::Config& config, const std::string& dtype);

/// The bytes of a safetensors file, and of its header among them.
struct FileBytes {
  int64_t header, all;
};
/// Writes a model's directory: its config.json, and fp32 weights of zero, which take no room on the disk.
FileBytes put_zeros(const std::string& directory, const model::Config& config);

/// Every file below `directory`, by its path from there, with its contents.
std::map<std::string, std::string> files_in(const std::string& directory);

}  // namespace shardwise::testing
