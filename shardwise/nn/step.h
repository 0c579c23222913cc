// What a layer needs to know of the forward it runs in.
#pragma once
#include "shardwise/parallel/step.h"

namespace shardwise::nn {

struct Step : parallel::Step {
  double dropout = 0;  // probability of dropping; 0 outside training
  using parallel::Step::Step;
};

}  // namespace shardwise::nn
