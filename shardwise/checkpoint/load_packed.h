// Loads a packed weight (GPTQ, AWQ) into a rank's quantized matrix. load_quantized.h describes the formats.
#pragma once
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/parallel/parameter.h"

namespace shardwise::checkpoint {

/// Fills weight.panels with this rank's shard. Cost: 8 MB of memory and the packed zero points.
/// Errors: c10::ValueError naming the tensor and the rule; adds NaN or Inf scales and invalid group indices
/// to `errors`.
void load_packed(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& config,
                 int rank, ValidationErrors& errors);

}  // namespace shardwise::checkpoint
