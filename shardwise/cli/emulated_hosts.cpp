// Every host is a namespace with one end of a veth pair, whose other end is a port of a bridge in a namespace
// of its own. A queueing discipline at the host's end delays and limits what the host sends. mpirun runs on
// the first host and starts its daemons on the others by a script in place of ssh.
#include "shardwise/cli/emulated_hosts.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "shardwise/base/environment.h"
#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/base/secret.h"
#include "shardwise/cli/signals.h"
#include "shardwise/comm/mpi/mpi.h"

namespace shardwise::cli {
namespace {

using namespace std::chrono_literals;
using Argv = std::vector<std::string>;

constexpr const char* kHostsVariable = "SHARDWISE_EMULATED_HOSTS";  // set on their ranks
constexpr const char* kInNamespaces = "network namespaces (root; in a container --privileged)";
constexpr auto kSignalInterval = 100ms;
constexpr double kBurstSeconds = 100e-6;  // of a token bucket, which timers fill
constexpr double kLeastBurstBytes = 16384;

/// Deletes everything when its input ends, which is when this program ends, also by SIGKILL.
constexpr const char* kCleaner = R"(
trap '' INT TERM HUP
exec >/dev/null 2>&1
read -r _
directory=$1
shift
for name; do kill -9 $(ip netns pids "$name"); done
for name; do ip netns del "$name"; done
rm -rf "$directory")";

[[noreturn]] void refuse(const std::string& needed, const std::string& got) {
  TORCH_CHECK_VALUE(false, "profile: --hosts needs ", needed, "; got ", got, " [SW0828]");
}

std::string needed_program(const Argv& names, const char* package) {
  const auto found = program_in_path(names);
  if (!found) refuse(fmt::format("{} (Debian: {})", names.back(), package), "none in PATH");
  return *found;
}

/// Checks what is known before anything is created.
void check_machine(const HostNetwork& network) {
  if (!comm::mpi::is_built_in()) refuse("a build with Open MPI (Debian: libopenmpi-dev)", "one without");
  if (geteuid() != 0) refuse("root, for network namespaces", fmt::format("user {}", geteuid()));
  needed_program({"ip"}, "iproute2");
  needed_program({"unshare"}, "util-linux");
  if (network.delay_seconds || network.bits_per_second) needed_program({"tc"}, "iproute2");
}

/// Runs a command that creates part of the hosts.
void create(const Argv& command, const std::string& needed) {
  check_signals();
  if (const auto complaint = complaint_of(command))
    refuse(needed, fmt::format("\"{}\" of {}", *complaint, fmt::join(command, " ")));
}

std::string address_of(int64_t host) {
  return fmt::format("10.77.0.{}", host);  // seen in these namespaces alone
}

/// Returns the discipline: netem delays, and its rate has no bursts; a rate alone needs only a token bucket.
Argv discipline_of(const HostNetwork& network) {
  const std::string rate = fmt::format("{:.0f}bit", network.bits_per_second.value_or(0));
  if (network.delay_seconds) {
    Argv netem{"netem", "delay", fmt::format("{:.3f}us", *network.delay_seconds * 1e6), "limit", "100000"};
    if (network.bits_per_second) netem.insert(netem.end(), {"rate", rate});
    return netem;
  }
  const double burst = std::max(kLeastBurstBytes, *network.bits_per_second / 8 * kBurstSeconds);
  return {"tbf", "rate", rate, "burst", fmt::format("{:.0f}b", burst), "latency", "100ms"};
}

std::string own_path() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

}  // namespace

EmulatedHosts::EmulatedHosts(const HostNetwork& network)
    : network_(network), prefix_(fmt::format("shardwise-{}-", getpid())) {
  check_machine(network);
  mpirun_ = needed_program({"mpirun.openmpi", "mpirun"}, "openmpi-bin");
  remember_signals();
  directory_ = base::make_temporary_directory("shardwise-hosts-");
  Argv cleaner{"sh", "-c", kCleaner, "sh", directory_};
  for (const std::string& name : namespaces()) cleaner.push_back(name);
  cleaner_ = std::make_unique<Child>(cleaner, ChildOptions{.has_pipe = true, .has_session = true});
  // mpirun splits the agent's path at blanks.
  if (directory_.find(' ') != std::string::npos) refuse("a TMPDIR without blanks", directory_);
  const std::string bridge = namespaces().front();
  create({"ip", "netns", "add", bridge}, kInNamespaces);
  create({"ip", "-n", bridge, "link", "add", "bridge", "up", "type", "bridge"}, "a kernel with bridges");
  for (int64_t host = 1; host <= network.hosts; ++host) add_host(host);
  write_agent();
}

EmulatedHosts::~EmulatedHosts() = default;

std::string EmulatedHosts::name_of(int64_t host) const {
  return fmt::format("{}{}", prefix_, host);
}

/// The switch first.
std::vector<std::string> EmulatedHosts::namespaces() const {
  std::vector<std::string> names{prefix_ + "switch"};
  for (int64_t host = 1; host <= network_.hosts; ++host) names.push_back(name_of(host));
  return names;
}

void EmulatedHosts::add_host(int64_t host) const {
  const std::string name = name_of(host), bridge = namespaces().front(), port = fmt::format("port{}", host);
  create({"ip", "netns", "add", name}, kInNamespaces);
  create({"ip", "-n", name, "link", "add", "net", "type", "veth", "peer", "name", port, "netns", bridge},
         "a kernel with veth pairs");
  create({"ip", "-n", bridge, "link", "set", port, "master", "bridge", "up"}, "a kernel with bridges");
  create({"ip", "-n", name, "addr", "add", address_of(host) + "/24", "dev", "net"}, kInNamespaces);
  for (const char* link : {"net", "lo"}) create({"ip", "-n", name, "link", "set", link, "up"}, kInNamespaces);
  if (network_.delay_seconds || network_.bits_per_second) limit(name);
}

void EmulatedHosts::limit(const std::string& host) const {
  const Argv discipline = discipline_of(network_);
  Argv tc{"tc", "-n", host, "qdisc", "add", "dev", "net", "root"};
  tc.insert(tc.end(), discipline.begin(), discipline.end());
  create(tc, fmt::format("a kernel with the queueing discipline {}, for {}", discipline.front(),
                         network_.delay_seconds ? "--delay" : "--rate"));
}

/// mpirun passes the address of a host, and then a command for its shell.
void EmulatedHosts::write_agent() const {
  const std::string path = directory_ + "/agent";
  base::write_text(path, fmt::format("#!/bin/sh\n"
                                     "name={}${{1##*.}}\n"
                                     "shift\n"
                                     "exec ip netns exec \"$name\" unshare --uts sh -c "
                                     "\"echo $name >/proc/sys/kernel/hostname; $*\"\n",
                                     prefix_));
  chmod(path.c_str(), S_IRWXU);
}

std::vector<std::string> EmulatedHosts::mpirun_command(const std::vector<std::string>& argv) const {
  std::vector<std::string> hosts;
  for (int64_t host = 1; host <= network_.hosts; ++host)
    hosts.push_back(fmt::format("{}:{}", address_of(host), network_.ranks_per_host));
  const std::string first = name_of(1);
  Argv command{"ip", "netns", "exec", first, "unshare", "--uts", "sh", "-c",
               "echo \"$0\" >/proc/sys/kernel/hostname; exec \"$@\"", first,
               // As a host name says which ranks share a node, and slots are filled in order.
               mpirun_, "--allow-run-as-root", "--quiet", "-n",
               std::to_string(network_.hosts * network_.ranks_per_host), "--host",
               fmt::format("{}", fmt::join(hosts, ",")), "--map-by", "slot", "--bind-to", "none"};
  for (const auto& [name, value] :
       {std::pair<std::string, std::string>{"plm_rsh_agent", directory_ + "/agent"},
        {"orte_tmpdir_base", directory_},
        {"pml", "ob1"},
        {"btl", "self,vader,tcp"},
        {"btl_vader_single_copy_mechanism", "none"}})  // containers forbid others
    command.insert(command.end(), {"--mca", name, value});
  for (const char* variable : {kHostsVariable, "SHARDWISE_SECRET"})
    command.insert(command.end(), {"-x", variable});
  command.push_back(own_path());
  command.insert(command.end(), argv.begin() + 1, argv.end());
  return command;
}

int EmulatedHosts::run(const std::vector<std::string>& argv) {
  Child mpirun(mpirun_command(argv), {.environment = {fmt::format("{}={}", kHostsVariable, network_.hosts),
                                                      "SHARDWISE_SECRET=" + base::Secret::random().text()}});
  std::optional<int> status;
  while (!(status = mpirun.wait_for(kSignalInterval))) check_signals();
  check_signals();
  return WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
}

bool is_on_emulated_host() {
  return base::env_text(kHostsVariable).has_value();
}

int run_on_emulated_hosts(const HostNetwork& network, const launch::LaunchContext& context,
                          const std::vector<std::string>& argv) {
  if (context.launcher != launch::LaunchContext::Launcher::self)
    refuse("to start the ranks itself", fmt::format("{} ranks of another launcher", context.world_size));
  EmulatedHosts hosts(network);
  return hosts.run(argv);
}

}  // namespace shardwise::cli
