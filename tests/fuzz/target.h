// The fuzz targets: readers of untrusted bytes, each with the invariants of the inputs that it accepts.
#pragma once
#include <c10/util/Exception.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

namespace shardwise::fuzz {

struct Target {
  std::string name;  // also that of its directories in seeds/ and files/
  std::string file;  // the file name of its input
  std::string (Mutator::*mutate)(const std::string& seed, const std::string& other);
  /// Reads the input at `path`, beside copies of the target's files. Errors: c10::Error of one short line
  /// with a code if the reader rejects the input; std::logic_error if it accepts the input and an invariant
  /// is violated.
  std::function<void(const std::string& path)> read;
};

/// Throws std::logic_error unless an accepted input meets the invariant `what`.
inline void hold(bool is_met, const std::string& what) {
  if (!is_met) throw std::logic_error("accepted an input that violates: " + what);
}

/// Throws std::logic_error unless the error that rejects an input is one short line with a code.
void check_rejection(const c10::Error& error);

/// config.json, generation_config.json, tokenizer_config.json.
std::vector<Target> config_targets();
/// A safetensors file, the index of a model directory and of a sharded directory.
std::vector<Target> tensor_targets();
/// Packed GPTQ and AWQ weights, panel files and their index, the optimizer's state with the progress of a
/// run.
std::vector<Target> weight_targets();
/// tokenizer.json, tokenizer.model and the settings beside it, a chat template, special_tokens_map.json, a
/// token file.
std::vector<Target> text_targets();
/// A batch of prompts, a --config file, the log and the settings of an earlier run.
std::vector<Target> command_targets();
/// The messages of a rendezvous.
std::vector<Target> rendezvous_targets();

/// Returns all of them. Errors: std::invalid_argument from `target` for an unknown name.
std::vector<Target> targets();
Target target(const std::string& name);

}  // namespace shardwise::fuzz
