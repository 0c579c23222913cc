// Where the memory of `shardwise generate` goes, measured and by formula.
#pragma once
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/infer/generate.h"
#include "shardwise/model/decoder.h"
#include "shardwise/plan/generation.h"

namespace shardwise::cli {

/// The largest batch that can come of `requests`: every text as long as it may become.
plan::Generation largest_batch(const model::Config& config, const std::vector<infer::Request>& requests,
                               const infer::Batching& batching, int tp, int64_t element_bytes);

/// Collective: of each rank, the most ordinary memory that tensors have held since it began, in bytes.
std::vector<int64_t> peaks_of_ranks(const comm::Group& group);

}  // namespace shardwise::cli
