// The tensors that hold one packed weight, unpacked into a rank's matrix. The layouts: quantized_weight.h.
#pragma once
#include "shardwise/checkpoint/agreement.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::checkpoint {

/// Fills weight.quantized. Cost: 8 MB, and the packed zeros. Errors: c10::ValueError naming the tensor and
/// the rule; scales that are not finite and groups that cannot be are `mistakes`.
void load_packed(const WeightFiles& files, const parallel::Parameter& weight, const model::Config& config,
                 int rank, ValidationErrors& mistakes);

}  // namespace shardwise::checkpoint
