// What is fuzzed: the readers of files that come from elsewhere, each with what must hold of all that it
// takes.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

namespace shardwise::fuzz {

struct Target {
  std::string name;  // and the directory of its seeds
  std::string file;  // the name under which the reader finds its input
  std::string (Mutator::*mutate)(const std::string& seed, const std::string& other);
  /// Reads the input at `path`. Errors: c10::ValueError where the reader refuses it; std::logic_error where
  /// it takes an input and makes something unsound of it.
  std::function<void(const std::string& path)> read;
};

/// config.json, a safetensors file, the index of a directory of them and that of one cut for ranks,
/// generation_config.json, tokenizer.json, a file of ids.
std::vector<Target> targets();

}  // namespace shardwise::fuzz
