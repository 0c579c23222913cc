// Which parameters a run leaves as they are: chosen by the names that the model's Hugging Face files use.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "shardwise/model/config.h"

namespace shardwise::train {

struct Frozen {
  std::set<std::string> parameters;  // our names
  std::set<std::string> tensors;     // the files'
};

/// `globs` as a shell's: * for any characters, dots too, ? for one, [0-3] for one of these. A tied head is
/// frozen with the embedding, whose name it has. Errors: c10::ValueError for a glob that matches nothing, for
/// part of the tensors that are held and trained as one, and when nothing is left to train.
Frozen frozen_by(const std::vector<std::string>& globs, const model::Config& config);

}  // namespace shardwise::train
