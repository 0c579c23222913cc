// The rows of `shardwise profile mlp` and `profile block`, measured or computed, and how they are printed.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/bench/part_profile.h"
#include "shardwise/bench/rate_fit.h"
#include "shardwise/cli/profile_hosts.h"
#include "shardwise/cli/profile_largest.h"

namespace shardwise::cli {

/// A part on one number of ranks. Times are of one call, on the slowest rank.
struct PartRow {
  int64_t ranks, hidden, ffn;
  plan::PartCosts costs;  // of rank 0
  int64_t weight_bytes;   // of rank 0
  int64_t sent_bytes;     // by rank 0
  double compute_us, communication_us, together_us;
  double speed_up;                                   // over the fewest ranks with this hidden size
  std::optional<bench::PartMeasured> measured = {};  // nullopt: computed
  int64_t nodes = 1;                                 // of a described machine, or emulated

  double ratio() const { return communication_us / compute_us; }
  /// Returns the share of communication in the sum of both.
  double communication_share() const { return communication_us / (compute_us + communication_us); }
};

/// The rows of a command.
struct PartTable {
  std::string command;                 // "profile mlp"
  std::string subject;                 // what is profiled, on what
  std::optional<std::string> machine;  // nullopt: measured on this one
  bench::PartShape shape;              // of all rows but ranks, hidden and ffn
  std::optional<HostNetwork> network;  // nullopt: the ranks are on one host, or on a described machine
  std::optional<LargestBatches> largest;
  std::vector<PartRow> rows;

  /// Returns the fit to the rows of several ranks that share memory and are not oversubscribed.
  std::optional<bench::RateFit> fit() const;
  /// Returns the time together by model: that of the computation as measured, and of the collectives by the
  /// fit, or by the network where the group is on more than one host. nullopt: there is no such model.
  std::optional<double> model_us(const PartRow& row, const std::optional<bench::RateFit>& fit) const;
};

/// Returns the rows of one shape as measured on several teams. `network`: nullopt if they are on one host.
std::vector<PartRow> measured_rows(const bench::PartShape& shape,
                                   const std::vector<bench::PartMeasured>& measured,
                                   const std::optional<HostNetwork>& network);
/// Returns the rows of one shape by model.
std::vector<PartRow> modeled_rows(const bench::PartShape& shape, const std::vector<int64_t>& ranks,
                                  const plan::Machine& machine);

std::string to_text(const PartTable& table);
std::string to_json(const PartTable& table);

}  // namespace shardwise::cli
