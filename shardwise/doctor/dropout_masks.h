// Checks that dropout masks match those of the unsharded model at every place.
#pragma once
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Checks at every place of the residual stream that this rank's mask is bit-equal to its slice of the mask
/// of a group of one, and that no two places (including attention probabilities), micro-batches or steps
/// share a key. Collective. `test_case` has dropout. (Attention's own masks affect its output, which is
/// compared with TP=1.)
Check check_dropout_masks(const model::DecoderWeights& weights, const TestCase& test_case,
                          const RunConfig& run_config);

}  // namespace shardwise::doctor
