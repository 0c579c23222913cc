#include "shardwise/cli/auto_host.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/log.h"
#include "shardwise/cli/bench.h"
#include "shardwise/cli/plan_options.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/saved_machine.h"
#include "shardwise/cli/signals.h"
#include "shardwise/cli/units.h"
#include "shardwise/comm/shm/limits.h"
#include "shardwise/config/layout.h"
#include "shardwise/launch/affinity.h"
#include "shardwise/launch/available_memory.h"
#include "shardwise/launch/environment.h"
#include "shardwise/launch/launch.h"

namespace shardwise::cli {
namespace {

using Launcher = launch::LaunchContext::Launcher;

/// The part of the available memory that plans may fill; the rest is for what is no tensor.
constexpr double kFilledPart = 0.9;
/// Of measuring an operation at one size, as in benchmarks/planned_times.py.
constexpr const char* kMachineSeconds = "0.2";

/// Runs `bench machine --save` with that many ranks, as processes of their own.
void measure_and_save(const std::string& command, int64_t ranks) {
  base::log_info(
      fmt::format("{}: --auto measures this host as {} rank{}, for some minutes; later runs read the result",
                  command, ranks, ranks == 1 ? "" : "s"));
  const std::vector<std::string> argv{
      "shardwise", "bench",         "machine", "--tp",   std::to_string(ranks),
      "--seconds", kMachineSeconds, "--save",  "--quiet"};
  const int code = launch::launch_ranks(static_cast<int>(ranks), argv, launch_options(argv));
  if (code > 128) throw EndedBySignal(code - 128);
  TORCH_CHECK(code == 0, command, ": --auto must measure this host; got exit code ", code,
              " of shardwise bench machine --tp ", ranks, ", whose error is above [SW0789]");
}

plan::Machine measured_machine(const std::string& command, int64_t ranks) {
  const HostRanks started = started_ranks(ranks);
  if (const auto saved = saved_machine(command, started)) return *saved;
  prepare_measured_file(command, "--auto", saved_machine_file(started).path());
  measure_and_save(command, ranks);
  const auto saved = saved_machine(command, started);
  TORCH_INTERNAL_ASSERT(saved);
  return *saved;
}

double excess(const plan::Host& host, const TooLarge& plan) {
  return static_cast<double>(plan.needed_bytes) / static_cast<double>(host.bytes_of_rank(plan.ranks));
}

}  // namespace

void add_auto_flags(Flags& flags, AutoOptions& o, const std::string& what) {
  flags.on_off("--auto", o.is_on,
               "choose the fastest " + what +
                   " that this host has memory for, and say which; flags that are given stay. Needs --device "
                   "cpu. On a first use measures the host once for each number of ranks, as shardwise bench "
                   "machine --save does, each in one to three minutes");
  flags.value("--memory-cap GB", o.memory_cap,
              "with --auto: memory that a rank may fill [its part of nine tenths of what is available]");
}

bool has_to_choose(const std::string& command, const AutoOptions& o, const std::string& device) {
  TORCH_CHECK_VALUE(o.is_on || !o.memory_cap, command, ": --memory-cap needs --auto; got ",
                    o.memory_cap.value_or(0), " without [SW0792]");
  TORCH_CHECK_VALUE(!o.is_on || device == "cpu", command,
                    ": --auto measures the processor, so it must be with --device cpu; got ", device,
                    "; give --tp instead [SW0859]");
  memory_cap_in_bytes(command, o.memory_cap);
  const launch::LaunchContext context = launch::launch_context_from_env();
  if (!o.is_on || context.launcher == Launcher::launcher) return false;
  TORCH_CHECK_VALUE(context.launcher == Launcher::self, command,
                    ": --auto chooses the number of ranks, so the command must start them; got ",
                    context.world_size, " of torchrun, mpirun or srun; give --tp instead [SW0793]");
  return true;
}

void refuse_unplanned(const std::string& command, bool is_given, const char* flag) {
  TORCH_CHECK_VALUE(!is_given, command, ": --auto must go without what has no planned time; got ", flag,
                    " [SW0791]");
}

int64_t most_ranks_of_choice() {
  const launch::AvailableCpus& cpus = launch::available_cpus();
  return std::min({cpus.cores, cpus.quota, comm::shm::kMaxRanks});
}

plan::Host host_of(const std::string& command, const std::vector<int64_t>& ranks, const AutoOptions& o) {
  plan::Host host;
  for (const int64_t count : ranks) host.machines.emplace(count, measured_machine(command, count));
  const auto available = static_cast<double>(launch::available_memory());
  host.memory_bytes = std::max(static_cast<int64_t>(kFilledPart * available), ranks.back());
  host.rank_cap = memory_cap_in_bytes(command, o.memory_cap);
  return host;
}

std::string next_text(const std::string& plan, double seconds, double more, double compute,
                      double communication) {
  return fmt::format("; next: {}: {}, {} more (compute {:+.2f} ms, communication {:+.2f} ms)", plan,
                     in_seconds(seconds), in_seconds(more), 1e3 * compute, 1e3 * communication);
}

std::string no_next_text(size_t too_large) {
  if (too_large == 0) return "; the flags leave no other";
  return fmt::format("; memory does not suffice for the {} other{}", too_large, too_large == 1 ? "" : "s");
}

void throw_too_large(const std::string& command, const plan::Host& host, const std::vector<TooLarge>& plans) {
  const TooLarge& least =
      *std::ranges::min_element(plans, {}, [&](const TooLarge& plan) { return excess(host, plan); });
  TORCH_CHECK_VALUE(false, command, ": --auto must find a plan that memory suffices for; got ",
                    in_megabytes(host.bytes_of_rank(least.ranks)), " a rank, and the smallest plan, ",
                    least.plan, ", needs ", in_megabytes(least.needed_bytes), " [SW0790]");
}

}  // namespace shardwise::cli
