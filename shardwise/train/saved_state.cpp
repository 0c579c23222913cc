#include "shardwise/train/saved_state.h"

namespace shardwise::train {

std::vector<checkpoint::StateTensor> state_tensors(const AdamW& optimizer) {
  std::vector<checkpoint::StateTensor> tensors;
  for (const auto& [parameter, rows, master, exp_avg, exp_avg_sq] : optimizer.state()) {
    if (master.defined()) tensors.push_back({parameter, checkpoint::kMaster, master, rows});
    tensors.push_back({parameter, checkpoint::kExpAvg, exp_avg, rows});
    tensors.push_back({parameter, checkpoint::kExpAvgSq, exp_avg_sq, rows});
  }
  return tensors;
}

}  // namespace shardwise::train
