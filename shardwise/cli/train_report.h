// The report of a training run: measured memory, communication and time next to those planned by plan/.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/axes_report.h"
#include "shardwise/cli/planned_memory.h"
#include "shardwise/cli/planned_step.h"
#include "shardwise/plan/peak.h"
#include "shardwise/train/loop.h"

namespace shardwise::cli {

/// One rank's last step: measured, and planned.
struct RankReport {
  struct Expected {
    SentBytes sent;
    std::optional<plan::Peak> peak;  // no value over MPI and for split batches, which plan/ does not model
  };
  train::Usage measured;
  Expected expected;
};

struct TrainReport {
  train::Summary summary;
  std::vector<RankReport> ranks;
  StepTimes times;
  std::optional<double> idle_fraction;  // of a step, of a pipeline stage
};

/// Returns one line with model, text, ranks and steps.
std::string describe(const train::Job& job);
/// Returns a line for each replica with its ranks, its micro-batches of a step and the number of parameters
/// that it updates, and how replicas store the weights.
std::string replicas_table(const train::Job& job, const comm::Mesh& mesh);

/// Returns whether the ranks share memory, or there is one. Memory is planned for such groups only.
bool ranks_share_memory(const comm::Group& group);
/// Returns the sizes of the peaks.
PlannedMemories planned_memory(const std::vector<plan::Peak>& peaks);
/// Returns a line with the planned peak of each rank, or with the reason why there is none.
std::string planned_memory_line(const PlannedMemories& planned);

/// Makes the report.
TrainReport make_report(const train::Job& job, train::Summary summary, StepTimes times,
                        const comm::Mesh& mesh);
/// Returns the human-readable summary and a table over the ranks.
std::string to_text(const TrainReport& report);
/// Returns one line of JSON.
std::string to_json(const TrainReport& report);

}  // namespace shardwise::cli
