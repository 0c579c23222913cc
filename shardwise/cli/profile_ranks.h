// The numbers of ranks of `shardwise profile`: measured on teams of one job, on this machine or on hosts that
// it emulates, or computed for a machine.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/bench/rank_team.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/profile_hosts.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/plan/machine.h"

namespace shardwise::cli {

/// The flags about ranks that all profiles have.
struct ProfileRanks {
  std::string default_ranks;  // to measure
  std::optional<std::string> ranks = {}, machine = {};
  std::optional<double> seconds = {};
  RankOptions options = {};
  HostOptions hosts = {};

  /// Returns the seconds to measure each number of ranks.
  double seconds_each() const { return seconds.value_or(2); }
};

/// Adds --ranks, --machine, --seconds and --timeout.
void add_ranks_flags(Flags& flags, ProfileRanks& o);

/// Returns the numbers of ranks, ascending. Without --ranks and with `machine`: the powers of two that it has
/// devices for, up to 32 and to `most`. Checks the flags about hosts too. Errors: c10::ValueError naming
/// `command`, flag and rule, as below.
std::vector<int64_t> ranks_of(const std::string& command, const ProfileRanks& o, int64_t most,
                              const std::optional<plan::Machine>& machine);

/// Returns the machine of --machine, after checking that no flag is given that matters to measuring alone;
/// nullopt without --machine, after checking those flags.
std::optional<plan::Machine> machine_of(const std::string& command, const ProfileRanks& o);

/// Checks that --ranks is not given: devices of a described machine do not slow each other's products.
void check_no_ranks(const std::string& command, const ProfileRanks& o);

/// Starts as many ranks as the largest team needs, on `network` if there is one, and runs `body` on each with
/// the teams and the group of all. Returns the job's exit code. Errors: those of run_on_ranks and of
/// run_on_emulated_hosts.
int run_on_teams(const Call& call, const ProfileRanks& o, const std::vector<int64_t>& ranks,
                 const std::function<void(const std::vector<bench::RankTeam>&, const comm::Group&)>& body);

}  // namespace shardwise::cli
