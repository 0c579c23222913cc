// Checks that what the ranks of a group do together matches one rank: conjugate collectives, the axes of a
// mesh, and dropout masks.
#pragma once
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Checks all_reduce (ranks summed in order with one rounding; short and long, dense and strided messages)
/// and forward and backward of f, f*, g, g* and the other conjugate collectives (parallel/collectives.h),
/// which must not modify their inputs. Collective. Results must be bit-equal, in fp64, fp32 and bf16.
Check check_conjugate_collectives(const comm::Group& group);

/// Checks for the meshes dp=1 × tp=n and tp=n × dp=1 that the group of tp has all ranks, and that of dp has
/// this rank only. Collective.
Check check_mesh(const comm::Group& group);

/// Checks at every place of the residual stream that this rank's mask is bit-equal to its slice of the mask
/// of a group of one, and that no two places (including attention probabilities), micro-batches or steps
/// share a key. Collective. `test_case` has dropout. (Attention's own masks affect its output, which is
/// compared with TP=1.)
Check check_dropout_masks(const model::DecoderWeights& weights, const TestCase& test_case,
                          const RunConfig& run_config);

}  // namespace shardwise::doctor
