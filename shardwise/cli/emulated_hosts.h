// Hosts that this machine emulates for `shardwise profile`: network namespaces with host names of their own,
// on one switch, between which ranks communicate over TCP with a stated delay and rate.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/child.h"
#include "shardwise/launch/environment.h"

namespace shardwise::cli {

/// Hosts with equally many ranks, and what limits the messages between them.
struct HostNetwork {
  int64_t hosts, ranks_per_host;
  std::optional<double> delay_seconds = {};    // one way
  std::optional<double> bits_per_second = {};  // that a host sends at most

  /// Returns the number of hosts that the first `ranks` ranks are on.
  int64_t hosts_of(int64_t ranks) const { return (ranks + ranks_per_host - 1) / ranks_per_host; }
};

/// Hosts that exist until the end of the object, or of this process, whatever ends it.
class EmulatedHosts {
 public:
  /// From now on the first SIGINT or SIGTERM is deferred to run(). Errors: c10::ValueError naming what this
  /// machine lacks: root, a program, MPI, network namespaces or a queueing discipline of the kernel.
  explicit EmulatedHosts(const HostNetwork& network);
  ~EmulatedHosts();
  EmulatedHosts(const EmulatedHosts&) = delete;
  EmulatedHosts& operator=(const EmulatedHosts&) = delete;

  /// Runs this program with `argv` as all ranks of the hosts, by mpirun, and returns its exit code. Errors:
  /// EndedBySignal, after ending the ranks.
  int run(const std::vector<std::string>& argv);

 private:
  std::string name_of(int64_t host) const;
  std::vector<std::string> namespaces() const;
  void add_host(int64_t host) const;
  void limit(const std::string& host) const;
  void write_agent() const;
  std::vector<std::string> mpirun_command(const std::vector<std::string>& argv) const;

  HostNetwork network_;
  std::string mpirun_, prefix_, directory_;
  std::unique_ptr<Child> cleaner_;
};

/// Returns whether this process is a rank on an emulated host.
bool is_on_emulated_host();

/// Runs `argv` as the ranks of emulated hosts, and returns the exit code. Errors: those of EmulatedHosts, and
/// c10::ValueError if another launcher started this process.
int run_on_emulated_hosts(const HostNetwork& network, const launch::LaunchContext& context,
                          const std::vector<std::string>& argv);

}  // namespace shardwise::cli
