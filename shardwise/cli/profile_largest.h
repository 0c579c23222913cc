// The largest batch of a training step that fits on each number of ranks, for `shardwise profile`.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/flags.h"
#include "shardwise/plan/training_plan.h"

namespace shardwise::cli {

struct LargestOptions {
  bool is_on = false;
  std::optional<double> memory_cap;  // GB of a rank
};

/// Adds --largest and --memory-cap.
void add_largest_flags(Flags& flags, LargestOptions& o);

/// The memory that a rank may fill, and the sequences that fit, 0 if none does, by the number of ranks.
struct LargestBatches {
  int64_t cap_bytes;
  std::map<int64_t, int64_t> by_ranks;

  /// Returns the cell of a table.
  std::string text(int64_t ranks) const;
  /// Returns the line below the table.
  std::string note() const;
};

/// Returns the largest batches of a training step of the whole model, of one micro-batch without
/// recomputation; nullopt without --largest. `machine`: nullopt for this one, whose memory ranks.back() ranks
/// divide. Errors: c10::ValueError for --memory-cap alone or out of range.
std::optional<LargestBatches> largest_batches(const std::string& command, const LargestOptions& o,
                                              const plan::TrainingTask& task, bool has_sequence_parallel,
                                              const std::vector<int64_t>& ranks,
                                              const std::optional<plan::Machine>& machine);

}  // namespace shardwise::cli
