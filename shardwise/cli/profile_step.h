// The rows of `shardwise profile step`, measured or computed, and how they are printed.
#pragma once
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/bench/step_profile.h"
#include "shardwise/cli/profile_largest.h"
#include "shardwise/cli/profile_ranks.h"

namespace shardwise::cli {

inline constexpr const char* kProfileStep = "profile step";

struct StepProfileOptions {
  ProfileRanks ranks{"1,2"};
  std::string model = "small", dtype = "bf16";
  int64_t seq_len = 256, batch_size = 4;
  bool sequence_parallel = true, json = false;
  LargestOptions largest;

  double tokens() const { return static_cast<double>(seq_len * batch_size); }
  int64_t element_bytes() const { return dtype == "fp32" ? 4 : 2; }
};

/// A step on one number of ranks. Milliseconds; by model there is neither waiting nor other time.
struct StepRow {
  int64_t ranks;
  double step_ms;
  bench::StepParts parts;
  int64_t weight_bytes;
  std::optional<bench::StepProfile> measured = {};
  int64_t nodes = 1;
  std::optional<double> model_ms = {};  // of a measured step, with the collectives' time by model

  double tokens_per_second_per_rank(double tokens, double ms) const {
    return tokens / ms * 1e3 / static_cast<double>(ranks);
  }
};

/// The rows of the command.
struct StepTable {
  const StepProfileOptions& options;
  std::optional<std::string> machine;  // nullopt: measured on this one
  std::optional<HostNetwork> network;  // nullopt: one host, or a described machine
  std::optional<LargestBatches> largest;
  std::vector<StepRow> rows = {};

  bool is_any_oversubscribed() const {
    return std::ranges::any_of(
        rows, [](const StepRow& row) { return row.measured && row.measured->is_oversubscribed; });
  }
};

std::string to_text(const StepTable& table);
std::string to_json(const StepTable& table);

}  // namespace shardwise::cli
