// The fuzz targets: readers of untrusted files, each with the invariants of the inputs that it accepts.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

namespace shardwise::fuzz {

struct Target {
  std::string name;  // also the directory of its seeds
  std::string file;  // the file name of its input
  std::string (Mutator::*mutate)(const std::string& seed, const std::string& other);
  /// Reads the input at `path`. Errors: c10::ValueError if the reader rejects it; std::logic_error if it
  /// accepts the input and an invariant is violated.
  std::function<void(const std::string& path)> read;
};

/// Returns the targets: config.json, a safetensors file, the index of a model directory and of a sharded
/// directory, generation_config.json, tokenizer.json, tokenizer.model, a token file.
std::vector<Target> targets();

}  // namespace shardwise::fuzz
