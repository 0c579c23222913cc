#include "shardwise/cli/profile_ranks.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "shardwise/cli/bench.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/model_input.h"
#include "shardwise/launch/process_group.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kMostModeledRanks = 1 << 16, kMostByDefault = 32;

std::vector<int64_t> powers_of_two(int64_t most) {
  std::vector<int64_t> powers;
  for (int64_t ranks = 1; ranks <= most; ranks *= 2) powers.push_back(ranks);
  return powers;
}

int64_t devices_of(const plan::Machine& machine) {
  return machine.across_nodes ? kMostModeledRanks : machine.devices_per_node;
}

/// The group of the first `ranks` ranks of `world`.
bench::RankTeam team_of(int64_t ranks, const launch::LaunchContext& context, const RankOptions& options,
                        const comm::Group& world) {
  if (context.rank >= ranks) return {ranks, std::nullopt, false};
  std::vector<int> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  const comm::Group group =
      ranks == world.size()
          ? world
          : launch::connect_group(context, fmt::format("first_{}", ranks), members, timeout_of(options));
  return {ranks, group, launch::is_oversubscribed(group, at::get_num_threads())};
}

/// Refuses a flag that matters to measuring alone.
void check_absent(const std::string& command, bool is_given, const char* flag) {
  TORCH_CHECK_VALUE(!is_given, command, ": --machine computes, and measures nothing; got ", flag,
                    " [SW0797]");
}

}  // namespace

void add_ranks_flags(Flags& flags, ProfileRanks& o) {
  flags.value(
      "--ranks LIST", o.ranks,
      fmt::format("numbers of ranks, ascending [{}; with --machine 1,2,4,... up to 32]", o.default_ranks));
  flags.value("--machine NAME", o.machine,
              fmt::format("compute the times for a machine instead: {}, or a file of shardwise bench machine",
                          fmt::join(plan::machine_names(), ", ")));
  flags.value("--seconds S", o.seconds, "time per row, at least five repetitions [2]");
  add_timeout_flag(flags, o.options);
}

std::vector<int64_t> ranks_of(const std::string& command, const ProfileRanks& o, int64_t most,
                              const std::optional<plan::Machine>& machine) {
  if (!o.ranks && machine) return powers_of_two(std::min({kMostByDefault, most, devices_of(*machine)}));
  const int64_t allowed = machine ? kMostModeledRanks : kMaxBenchRanks;
  std::vector<int64_t> ranks = integers_of(command, "--ranks", o.ranks.value_or(o.default_ranks), 1, allowed);
  TORCH_CHECK_VALUE(std::ranges::is_sorted(ranks, std::ranges::less_equal{}), command,
                    ": --ranks must be ascending; got ", o.ranks.value_or(o.default_ranks), " [SW0796]");
  if (machine) check_devices(command, *machine, ranks.back());
  network_of(command, o.hosts, ranks);
  return ranks;
}

std::optional<plan::Machine> machine_of(const std::string& command, const ProfileRanks& o) {
  if (!o.machine) {
    validate(command, o.options);
    check_seconds(command, o.seconds_each());
    return std::nullopt;
  }
  check_absent(command, o.seconds.has_value(), "--seconds");
  check_absent(command, o.options.timeout_s != RankOptions().timeout_s, "--timeout");
  check_absent(command, o.hosts.is_given(), "a flag about hosts");
  return machine_of(command, *o.machine);
}

void check_no_ranks(const std::string& command, const ProfileRanks& o) {
  check_absent(command, o.ranks.has_value(), "--ranks");
}

int run_on_teams(const Call& call, const ProfileRanks& o, const std::vector<int64_t>& ranks,
                 const std::function<void(const std::vector<bench::RankTeam>&, const comm::Group&)>& body) {
  const launch::LaunchContext context = launch_context_for(ranks.back());
  const std::optional<HostNetwork> network = network_of("profile", o.hosts, ranks);
  if (network && !is_on_emulated_host()) return run_on_emulated_hosts(*network, context, call.argv);
  return run_on_ranks({context, ranks.back(), o.options, call.argv}, [&](const comm::Group& world) {
    std::vector<bench::RankTeam> teams;
    for (const int64_t count : ranks) teams.push_back(team_of(count, context, o.options, world));
    body(teams, world);
  });
}

}  // namespace shardwise::cli
