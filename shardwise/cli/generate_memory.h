// The memory of `shardwise generate`, measured and planned.
#pragma once
#include <vector>

#include <optional>

#include "shardwise/cli/planned_memory.h"
#include "shardwise/comm/mesh.h"
#include "shardwise/config/stages.h"
#include "shardwise/infer/generate.h"
#include "shardwise/model/decoder.h"
#include "shardwise/plan/generation.h"

namespace shardwise::cli {

/// Returns the largest batch that `requests` can produce, with every sequence at its maximum length; its
/// caches are those of the batches of all stages.
plan::Generation largest_batch(const model::DecoderWeights& weights,
                               const std::vector<infer::Request>& requests, const infer::Batching& batching,
                               const config::Stages& stages);

/// Returns the planned peak of each rank for the largest batch of a run; empty over MPI, which plan/ does not
/// model. `batch`: of a model of one stage; `weight_bytes`: by rank.
PlannedMemories planned_memory(const plan::Generation& batch, const config::Stages& stages,
                               const std::vector<int64_t>& weight_bytes, const comm::Mesh& mesh);

/// A rank's peaks of tensor memory, in bytes, since the weights were loaded.
struct PeakMemory {
  int64_t private_bytes;                        // outside the symmetric heap
  std::optional<int64_t> symmetric_heap_bytes;  // no value over MPI; 0 for a rank alone
};

/// Returns the peaks by rank. Collective.
std::vector<PeakMemory> peaks_of_ranks(const comm::Mesh& mesh);

}  // namespace shardwise::cli
