#include "shardwise/cli/ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/cli/program.h"
#include "shardwise/cli/signals.h"
#include "shardwise/device/device.h"
#include "shardwise/launch/affinity.h"
#include "shardwise/launch/process_group.h"

namespace shardwise::cli {
namespace {

constexpr double kMaxTimeout = 1e6;  // seconds, eleven days: more milliseconds overflow an int

/// Creates the group and fixes the number of threads and their cores. Called before any computation.
comm::Group join(const RankJob& job) {
  end_cleanly_on_signals(job.context.launcher == launch::LaunchContext::Launcher::self);
  base::keep_freed_memory();
  comm::Group group = launch::init_process_group(job.context, timeout_of(job.options));
  at::set_num_threads(launch::bind_to_core_share(group));
  base::install_memory_counter();
  return group;
}

/// Rethrows `error`, prefixed with the rank if it is a run-time failure whose message names no rank.
[[noreturn]] void throw_naming_rank(const std::exception& error, int rank) {
  const std::string text = base::one_line(error);
  const bool is_runtime_failure = dynamic_cast<const c10::ValueError*>(&error) == nullptr;
  if (is_runtime_failure && text.find("rank ") != std::string::npos) throw;
  TORCH_CHECK(false, base::with_code_last(c10::str("rank ", rank, ": ", text, " [SW0323]")));
}

/// Joins the group. Errors: as join()'s; those of the system, such as of `ulimit -n`, name the rank.
comm::Group join_or_name_rank(const RankJob& job) {
  try {
    return join(job);
  } catch (const c10::ValueError&) {
    throw;
  } catch (const std::exception& error) {
    throw_naming_rank(error, job.context.rank);
  }
}

/// Prints the error on rank 0 while all ranks wait: a launcher ends the other ranks as soon as one has
/// exited.
void print_collective_error(const base::CollectiveError& error, const comm::Group& group) {
  if (group.rank() == 0) print_error(error);
  try {
    group.barrier();
    // NOLINTNEXTLINE(bugprone-empty-catch): a peer was killed; nothing is left to report.
  } catch (const std::exception&) {
  }
}

}  // namespace

std::chrono::milliseconds timeout_of(const RankOptions& options) {
  return std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1e3));
}

void add_tp_flag(Flags& flags, int64_t& tp) {
  flags.value("--tp,--tensor-parallel-size,--tp-size N", tp,
              fmt::format("tensor-parallel ranks to start [{}]", tp));
}

void add_timeout_flag(Flags& flags, RankOptions& options) {
  flags.value("--timeout SECONDS", options.timeout_s,
              fmt::format("longest wait for another rank; after it the rank is considered lost [{}]",
                          options.timeout_s));
}

void add_device_flag(Flags& flags, RankOptions& options) {
  flags.value(
      "--device NAME", options.device,
      "what computes: cpu; cuda, one GPU for each rank; auto, a GPU if there is one; or emulated, the "
      "GPU's kernels on the CPU, for tests [cpu]");
}

void validate(const std::string& command, const RankOptions& options) {
  device::check_name(command, options.device);
  TORCH_CHECK_VALUE(options.timeout_s >= 1e-3 && options.timeout_s <= kMaxTimeout, command,
                    ": --timeout must be from 0.001 to 1000000 seconds; got ", options.timeout_s,
                    " [SW0016]");
}

launch::LaunchContext launch_context_for(int64_t ranks) {
  const launch::LaunchContext context = launch::launch_context_from_env();
  if (context.launcher != launch::LaunchContext::Launcher::self) {
    launch::check_world_size(context, ranks);
  } else if (ranks > 0) {  // other numbers have messages of their flags
    launch::check_started_ranks(ranks);
  }
  launch::check_nodes(context, ranks);
  launch::check_thread_variables();
  return context;
}

int64_t replicas_left(int64_t tp) {
  const launch::LaunchContext context = launch::launch_context_from_env();
  const bool divides = tp >= 1 && context.world_size % tp == 0;
  return context.launcher != launch::LaunchContext::Launcher::self && divides ? context.world_size / tp : 1;
}

launch::LaunchOptions launch_options(const std::vector<std::string>& argv) {
  return {.before_start = check_signals, .main = [argv] {
            forget_signals();  // of the launcher
            return run_program(argv);
          }};
}

namespace {

/// A rank's groups beside that of the host. They live until an error of `body` has aborted the host's group:
/// one that is destroyed before leaves, and peers that wait in it would report that instead of the error.
using Parts = std::vector<comm::Group>;

/// Runs `body` on every rank, with the group of all ranks in the memory of the host. It adds the groups that
/// it connects.
int run_on_host_group(const RankJob& job,
                      const std::function<void(const comm::Group& host, Parts& parts)>& body) {
  if (job.context.launcher == launch::LaunchContext::Launcher::self && job.ranks > 1) {
    return launch::launch_ranks(static_cast<int>(job.ranks), job.argv, launch_options(job.argv));
  }
  const comm::Group group = join_or_name_rank(job);
  Parts parts;
  try {
    body(group, parts);
    parts.clear();
  } catch (const base::CollectiveError& error) {
    parts.clear();
    print_collective_error(error, group);
    launch::shutdown();
    return launch::kUsageErrorExitCode;
  } catch (const EndedBySignal& error) {
    group.abort(error.what());
    if (job.context.launcher == launch::LaunchContext::Launcher::self) throw;
    return 128 + error.signal();           // the launcher prints why
  } catch (const std::exception& error) {  // usage errors were reported before
    group.abort(base::one_line(error));
    throw_naming_rank(error, job.context.rank);
  }
  launch::shutdown();
  return 0;
}

/// Connects one group of a mesh on the job's device. `host` and `world` have all ranks.
comm::Group connect_part(const RankJob& job, const std::string& name, const std::vector<int>& ranks,
                         const comm::Group& host, const comm::Group& world) {
  if (std::ssize(ranks) == world.size()) return world;
  if (ranks.size() == 1) return comm::Group(world.device());
  return device::connect(job.options.device,
                         launch::connect_group(job.context, name, ranks, timeout_of(job.options), &host));
}

}  // namespace

int run_on_ranks(const RankJob& job, const std::function<void(const comm::Group&)>& body) {
  return run_on_host_group(job, [&](const comm::Group& host, Parts& parts) {
    body(parts.emplace_back(device::connect(job.options.device, host)));
  });
}

int run_on_parts(const RankJob& job,
                 const std::function<void(const comm::Group&, const comm::Mesh::Connect&)>& body) {
  return run_on_host_group(job, [&](const comm::Group& host, Parts& parts) {
    const comm::Group world = parts.emplace_back(device::connect(job.options.device, host));
    body(world, [&](const std::string& name, const std::vector<int>& ranks) {
      return parts.emplace_back(connect_part(job, name, ranks, host, world));
    });
  });
}

int run_on_mesh(const RankJob& job, const MakeMesh& make_mesh,
                const std::function<void(const comm::Mesh&)>& body) {
  return run_on_parts(
      job, [&](const comm::Group&, const comm::Mesh::Connect& connect) { body(make_mesh(connect)); });
}

}  // namespace shardwise::cli
