#include "shardwise/cli/ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>

#include "shardwise/base/error.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/cli/program.h"
#include "shardwise/cli/signals.h"
#include "shardwise/comm/affinity.h"
#include "shardwise/comm/join.h"
#include "shardwise/comm/launch.h"

namespace shardwise::cli {
namespace {

constexpr double kLongestTimeout = 1e6;  // seconds, eleven days: beyond, milliseconds leave an int

/// Before anything is computed: threads and their cores are fixed from then on.
comm::Group join(const RankJob& job) {
  end_cleanly_on_signals(job.place.launcher == comm::LaunchContext::Launcher::self);
  base::keep_freed_memory();
  comm::Group group = comm::init_process_group(job.place, timeout_of(job.options));
  at::set_num_threads(comm::take_core_share(group));
  base::install_memory_counter();
  return group;
}

/// What fails at run time names a rank; most errors say themselves whose they are.
[[noreturn]] void throw_naming_rank(const std::exception& error, int rank) {
  const std::string text = base::one_line(error);
  const bool is_runtime_failure = dynamic_cast<const c10::ValueError*>(&error) == nullptr;
  if (is_runtime_failure && text.find("rank ") != std::string::npos) throw;
  TORCH_CHECK(false, "rank ", rank, ": ", text);
}

/// The first rank's to tell, while all are there: a starter ends the others once one has ended.
void tell_agreed(const base::CollectiveError& error, const comm::Group& group) {
  if (group.rank() == 0) tell(error);
  try {
    group.barrier();
    // NOLINTNEXTLINE(bugprone-empty-catch): a peer was killed, and all have what they are to say.
  } catch (const std::exception&) {
  }
}

}  // namespace

std::chrono::milliseconds timeout_of(const RankOptions& options) {
  return std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1e3));
}

void add_timeout_flag(Flags& flags, RankOptions& options) {
  flags.value(
      "--timeout SECONDS", options.timeout_s,
      fmt::format("longest wait for another rank, which then counts as lost [{}]", options.timeout_s));
}

void validate(const std::string& command, const RankOptions& options) {
  TORCH_CHECK_VALUE(options.timeout_s >= 1e-3 && options.timeout_s <= kLongestTimeout, command,
                    ": --timeout must be from 0.001 to 1000000 seconds; got ", options.timeout_s);
}

comm::LaunchContext place_for(int64_t tp) {
  const comm::LaunchContext place = comm::launch_context_from_env();
  if (place.launcher != comm::LaunchContext::Launcher::self) comm::check_world_size(place, tp);
  comm::check_nodes(place, tp);
  comm::check_thread_variables();
  return place;
}

int run_on_ranks(const RankJob& job, const std::function<void(const comm::Group&)>& body) {
  if (job.place.launcher == comm::LaunchContext::Launcher::self && job.tp > 1) {
    check_signals();  // those that were remembered: from here on the launcher looks after them
    return comm::launch(static_cast<int>(job.tp), job.argv);
  }
  const comm::Group group = join(job);
  try {
    body(group);
  } catch (const base::CollectiveError& error) {
    tell_agreed(error, group);
    comm::finish();
    return comm::kUsageErrorExitCode;
  } catch (const std::exception& error) {  // what else the caller can get wrong was refused before
    group.abort(base::one_line(error));
    throw_naming_rank(error, job.place.rank);
  }
  comm::finish();
  return 0;
}

}  // namespace shardwise::cli
