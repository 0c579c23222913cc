// The flags of `shardwise profile` about emulated hosts, and the model of the network between these.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shardwise/cli/emulated_hosts.h"
#include "shardwise/cli/flags.h"
#include "shardwise/plan/communication.h"

namespace shardwise::cli {

struct HostOptions {
  std::optional<int64_t> hosts;
  std::optional<std::string> delay, rate;

  bool is_given() const { return hosts || delay || rate; }
};

/// Adds --hosts, --delay and --rate.
void add_host_flags(Flags& flags, HostOptions& o);

/// Checks that a flag has what it needs. Errors: c10::ValueError naming both and what there is.
void check_needed(const std::string& command, const std::string& flag, bool has_needed,
                  const std::string& needed, const std::string& got);

/// Returns the hosts of --hosts for these numbers of ranks; nullopt without. Errors: c10::ValueError naming
/// `command`, flag and rule.
std::optional<HostNetwork> network_of(const std::string& command, const HostOptions& o,
                                      const std::vector<int64_t>& ranks);

/// Returns "2 hosts of 1 rank, 50 us, 10 Gbit/s".
std::string to_text(const HostNetwork& network);
/// Returns the hosts of a group, with a mark if it has several: "1", "2, crosses".
std::string hosts_text(const HostNetwork& network, int64_t ranks);
nlohmann::ordered_json to_json(const HostNetwork& network);

/// Returns by the model of plan/ the seconds that collectives of `ranks` ranks on more than one host take, if
/// nothing but the network limits them. nullopt: no rate is stated, or the ranks do not fill their hosts.
std::optional<double> network_seconds(const HostNetwork& network, int64_t ranks,
                                      const plan::Collectives& collectives, int64_t element_bytes);

}  // namespace shardwise::cli
