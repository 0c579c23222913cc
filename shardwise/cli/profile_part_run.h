// What `shardwise profile mlp` and `profile block` share: flags, and the run on ranks or on a described
// machine.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/bench/profiled_part.h"
#include "shardwise/cli/profile_largest.h"
#include "shardwise/cli/profile_ranks.h"

namespace shardwise::cli {

/// The flags of both commands, beside those about ranks.
struct PartOptions {
  std::optional<std::string> dtype;
  bool backward = false, sequence_parallel = false, json = false;
};

/// Adds --dtype, --backward, --forward, --sequence-parallel and --json.
void add_flags(Flags& flags, PartOptions& o);

/// Returns a shape without config and batch. Errors: c10::ValueError for an unknown dtype.
bench::PartShape shape_of(const std::string& command, const PartOptions& o, plan::Part part);

/// What a command profiles.
struct PartRun {
  std::string command, subject;
  std::vector<bench::PartShape> shapes;  // of all ranks; every one on all numbers of ranks
  std::vector<int64_t> ranks;
  bool compares = false;                       // the outputs with those of one rank
  std::optional<LargestBatches> largest = {};  // nullopt: not asked for
};

/// Prints the rows of a described machine. Returns the exit code, as below.
int print_modeled(const PartRun& run, const plan::Machine& machine, const PartOptions& o);

/// Measures and prints the rows. Errors: c10::ValueError if outputs are compared without one rank; c10::Error
/// if they differ by more than rounding.
int measure_and_print(const Call& call, const PartRun& run, const ProfileRanks& ranks, const PartOptions& o);

}  // namespace shardwise::cli
