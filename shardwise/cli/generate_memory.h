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

/// Returns the batches of which one needs the most memory: those that the requests begin with, one after the
/// other, whose sequences have their maximum length from then on; or the largest possible one, if more
/// requests follow. `weights` and the batches are those of the stages.
std::vector<plan::Generation> largest_batches(const model::DecoderWeights& weights,
                                              const std::vector<infer::Request>& requests,
                                              const infer::Batching& batching, const config::Stages& stages);

/// Returns the planned peak of each rank for the largest of `batches`; empty over MPI, which plan/ does not
/// model. `batches`: of the whole model; `weight_bytes`: by rank.
PlannedMemories planned_memory(const std::vector<plan::Generation>& batches, const config::Stages& stages,
                               const std::vector<int64_t>& weight_bytes, const comm::Mesh& mesh);

/// A rank's peaks of tensor memory, in bytes, since the weights were loaded.
struct PeakMemory {
  int64_t private_bytes;                        // outside the symmetric heap
  std::optional<int64_t> symmetric_heap_bytes;  // no value over MPI; 0 for a rank alone
};

/// Returns the peaks by rank. Collective.
std::vector<PeakMemory> peaks_of_ranks(const comm::Mesh& mesh);

}  // namespace shardwise::cli
