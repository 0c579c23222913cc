#include "shardwise/train/saved_state.h"

namespace shardwise::train {

std::vector<checkpoint::StateTensor> state_tensors(const AdamW& optimizer) {
  std::vector<checkpoint::StateTensor> tensors;
  for (const auto& [parameter, master, exp_avg, exp_avg_sq] : optimizer.state()) {
    if (master.defined()) tensors.push_back({parameter, checkpoint::kMaster, master});
    tensors.push_back({parameter, checkpoint::kExpAvg, exp_avg});
    tensors.push_back({parameter, checkpoint::kExpAvgSq, exp_avg_sq});
  }
  return tensors;
}

}  // namespace shardwise::train
