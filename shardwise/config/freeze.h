// Selects the parameters that a run does not train, by their names in the model's Hugging Face files.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::config {

/// The frozen parameters of a run.
struct Frozen {
  std::set<std::string> parameters;  // shardwise's parameter names
  std::set<std::string> tensors;     // tensor names in the Hugging Face files
};

/// Returns the parameters that `globs` match, with shell syntax: * matches any characters including dots, ?
/// matches one, [0-3] matches one of these. A tied LM head is frozen under the name of the embedding. Errors:
/// c10::ValueError beginning with `command` if a glob matches nothing, if only some of the tensors of one
/// fused parameter match, if nothing is left to train, or if there are globs and the model can only be
/// planned.
Frozen frozen_by(const std::string& command, const std::vector<std::string>& globs, const Config& config);

}  // namespace shardwise::config
