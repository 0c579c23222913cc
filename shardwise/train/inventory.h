// What the ranks hold at the end of a run: every parameter's slices, and where the memory went.
#pragma once
#include <string>
#include <vector>

#include "shardwise/checkpoint/checkpoint.h"

namespace shardwise::train {

/// One parameter, and the shape of each rank's slice of it.
struct Slices {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::vector<int64_t>> by_rank;
};

/// One rank's tensor bytes. The peaks are the most held at once since it began; `peak_own` has the three
/// before it in it, and is 0 where nothing counts memory.
struct Holdings {
  int64_t weights = 0;
  int64_t main_gradients = 0;
  int64_t optimizer = 0;    // moments and master weights
  int64_t peak_own = 0;     // ordinary memory
  int64_t peak_shared = 0;  // memory that peers can read
};

struct Inventory {
  std::vector<Slices> parameters;
  std::vector<Holdings> ranks;
};

/// Collective. Cost: one all_gather of five numbers.
Inventory take_inventory(const nn::UsedParameters& roles,
                         const std::vector<checkpoint::ParameterState>& state, const comm::Group& group);

}  // namespace shardwise::train
