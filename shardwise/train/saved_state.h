// AdamW's state as checkpoints store it.
#pragma once
#include <vector>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/train/optimizer.h"

namespace shardwise::train {

/// Returns the optimizer's state for checkpoint::TrainState. The tensors share the optimizer's memory:
/// checkpoint::load_state writes into it.
std::vector<checkpoint::StateTensor> state_tensors(const AdamW& optimizer);
/// As above, of a pipeline stage with these weights: besides, no rows of the trained parameters of other
/// stages.
std::vector<checkpoint::StateTensor> state_tensors(const AdamW& optimizer,
                                                   const model::DecoderWeights& weights);

}  // namespace shardwise::train
