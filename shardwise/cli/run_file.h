// A training run as it is read from a file of `shardwise train --report`, which run_figures.h writes.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/train/shard_report.h"

namespace shardwise::cli {

/// The classes of a rank's tensor memory, by their names in the file.
inline constexpr std::array kMemoryClasses = {"weights", "main gradients", "optimizer", "activations",
                                              "shared memory"};
/// Bytes by class; over MPI, without shared memory, the last is 0.
using MemoryByClass = std::array<int64_t, kMemoryClasses.size()>;
int64_t total(const MemoryByClass& memory);

/// One step; times are by rank.
struct RunStep {
  int64_t step = 0;
  double loss = 0;
  std::optional<double> val_loss = {};
  std::vector<double> step_ms = {}, comm_ms = {};
  std::vector<double> wait_ms = {};  // of comm_ms; empty over MPI, where waiting is not counted

  double slowest_ms() const;
};

/// One rank: what it sent in the last step, and its peak memory.
struct RunRank {
  int64_t comm_bytes = 0, expected_comm_bytes = 0;
  std::optional<int64_t> copied_bytes = {};  // no value over MPI
  MemoryByClass memory = {};
  std::optional<MemoryByClass> expected_memory = {};  // no value for what plan/ does not model
};

/// The planned time of a step.
struct PlannedMs {
  double compute, communication;

  double total() const { return compute + communication; }
};

struct RunFile {
  std::string name = {};  // how a report refers to it: the file's, or the path if names of files are equal
  std::string description = {};
  int64_t parameters = 0, tp = 0, dp = 1, pp = 1, tokens_per_step = 0;
  bool sequence_parallel = false;
  std::optional<PlannedMs> planned = {};
  std::optional<double> measured_ms = {};  // StepTimes::median
  std::vector<RunStep> steps = {};         // at least one; numbers ascend
  std::vector<RunRank> ranks = {};         // pp·dp·tp of them
  std::vector<train::ShardShapes> shapes = {};
};

/// Reads the files. Errors: c10::ValueError that names the file, unless each can be read and has all of the
/// above.
std::vector<RunFile> read_runs(const std::vector<std::string>& paths);

}  // namespace shardwise::cli
