// What a report computes of the figures of training runs.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/run_file.h"

namespace shardwise::cli {

/// Mean times of a step without kFirstSteps; of all steps if there are no others.
struct StepMeans {
  double step_ms = 0, comm_ms = 0;
  std::optional<double> wait_ms = {};  // of comm_ms; no value over MPI

  double computing_ms() const { return step_ms - comm_ms; }
  double communicating_ms() const { return comm_ms - wait_ms.value_or(0); }
};
/// Returns those of each rank.
std::vector<StepMeans> means_by_rank(const RunFile& run);
/// Returns the tokens per second of the slowest rank, of the same steps.
double tokens_per_second(const RunFile& run);

/// How the losses of two runs differ in the steps that both have.
struct LossDifference {
  int64_t steps = 0, equal = 0;  // in common, and those of equal losses
  double largest = 0;
};
LossDifference loss_difference(const RunFile& a, const RunFile& b);

/// Parameters of equal shapes, of all layers together.
struct ShapeRow {
  std::string name;  // with * for the number of the layer
  int64_t parameters = 0;
  std::vector<int64_t> shape = {};
  std::vector<std::vector<int64_t>> by_rank = {};
};
/// Returns the rows in the order of their first parameters.
std::vector<ShapeRow> shape_rows(const std::vector<train::ShardShapes>& shapes);

/// Returns "2 stages x 3 x 4 with sp": the stages and replicas, if there are several, and the
/// tensor-parallel ranks.
std::string ranks_text(const RunFile& run);

}  // namespace shardwise::cli
