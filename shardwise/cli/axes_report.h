// What a step's ranks send and wait for along each axis of the mesh: measured, and planned.
#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "shardwise/train/job.h"
#include "shardwise/train/mesh.h"
#include "shardwise/train/record.h"

namespace shardwise::cli {

struct TrainReport;

/// The planned bytes that a rank sends in one step.
struct SentBytes {
  int64_t all = 0;                                     // over all axes
  std::array<int64_t, train::kAxes.size()> axes = {};  // as train::Usage::axes counts them
};
/// Returns those of a rank of the job.
SentBytes planned_bytes(const train::Job& job, const comm::Mesh& mesh, int rank);

/// Returns the least part of a step in which a pipeline stage is idle, (p - 1) / (vm + p - 1) for m
/// micro-batches of a replica (base/pipeline.h); no value without stages.
std::optional<double> idle_fraction(const train::TrainOptions& options);

/// Returns comm_ms, wait_ms, comm_bytes and expected_comm_bytes of each axis that a rank used.
nlohmann::ordered_json axes_json(const train::Usage& measured, const SentBytes& planned);
/// Returns a table with a line for each axis, of the largest figures of all ranks, and the idle time of
/// stages; "" if only one axis was used.
std::string axes_table(const TrainReport& report);

}  // namespace shardwise::cli
