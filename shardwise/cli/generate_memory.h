// The memory of `shardwise generate`, measured and planned.
#pragma once
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/infer/generate.h"
#include "shardwise/model/decoder.h"
#include "shardwise/plan/generation.h"

namespace shardwise::cli {

/// Returns the largest batch that `requests` can produce, with every sequence at its maximum length.
plan::Generation largest_batch(const model::Config& config, const std::vector<infer::Request>& requests,
                               const infer::Batching& batching, int tp, int64_t element_bytes);

/// Returns each rank's peak of tensor memory outside the symmetric heap since its start, in bytes.
/// Collective.
std::vector<int64_t> peaks_of_ranks(const comm::Group& group);

}  // namespace shardwise::cli
