// How the layers of a model are dealt to pipeline stages.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/base/split.h"

namespace shardwise::config {

/// The model's layers are cut into parts, which are dealt to the stages in turn.
struct Stages {
  int64_t pp = 1;                    // number of stages
  int64_t virtual_stages = 1;        // parts that each of them has
  std::vector<int64_t> layers = {};  // of each part, in the order of the model; empty: as even as possible
};

/// Checks that every part has layers, of `layers` in all.
/// Errors: c10::ValueError, beginning with `command`, that names --pp, --virtual-stages and --pp-layers.
void check_stages(const std::string& command, const Stages& stages, int64_t layers);

/// Returns the runs of layers of stage `stage`, one for each of its parts. Parts as even as possible: the
/// first ones are larger by one.
std::vector<base::Range> layers_of(const Stages& stages, int64_t layers, int stage);

}  // namespace shardwise::config
