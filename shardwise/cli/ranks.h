// Gives a command its ranks: its own process, ranks that it starts, or ranks that torchrun, mpirun or srun
// started.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/cli/flags.h"
#include "shardwise/comm/mesh.h"
#include "shardwise/config/config.h"
#include "shardwise/launch/environment.h"
#include "shardwise/launch/launch.h"

namespace shardwise::cli {

/// The options of a command about its ranks, apart from their number.
struct RankOptions {
  // The limit of every wait for another rank.
  double timeout_s = std::chrono::duration<double>(comm::kTimeout).count();
  std::string device = "cpu";  // of device::names
};

std::chrono::milliseconds timeout_of(const RankOptions& options);

/// Adds the flag --tp, whose default is `tp`.
void add_tp_flag(Flags& flags, int64_t& tp);
/// Adds the flag --timeout.
void add_timeout_flag(Flags& flags, RankOptions& options);
/// Adds the flag --device.
void add_device_flag(Flags& flags, RankOptions& options);
/// Checks the values of --timeout and --device. Errors: c10::ValueError naming `command`, the flag and the
/// rule.
void validate(const std::string& command, const RankOptions& options);

/// Returns this process's rank and node in its job.
/// Errors: c10::ValueError if another launcher started a number of ranks other than `ranks`, if this process
/// cannot start as many, or if the ranks are on several nodes and cannot be connected.
launch::LaunchContext launch_context_for(int64_t ranks);

/// Returns how many replicas of `tp` ranks the ranks of another launcher make; 1 if this process starts them,
/// or if tp does not divide their number.
int64_t replicas_left(int64_t tp);

/// A job of `ranks` ranks. This process is one of them, or starts them by running `argv` again.
struct RankJob {
  launch::LaunchContext context;
  int64_t ranks;
  RankOptions options;
  std::vector<std::string> argv;
};

/// Returns the options of launch_ranks for this program with `argv`.
launch::LaunchOptions launch_options(const std::vector<std::string>& argv);

/// Runs `body(group)` on every rank of the job, with a group on the job's device, and returns the job's exit
/// code. A process started by hand
/// becomes the launcher if there are several ranks. If `body` throws a base::CollectiveError, rank 0 prints
/// it and the exit code is 2. Errors: the other errors of `body`, after aborting the group.
int run_on_ranks(const RankJob& job, const std::function<void(const comm::Group&)>& body);

/// As run_on_ranks; `connect` connects groups of some of the ranks, on the job's device. A failure of one
/// group ends all groups of its rank.
int run_on_parts(const RankJob& job,
                 const std::function<void(const comm::Group&, const comm::Mesh::Connect& connect)>& body);

/// Makes the mesh of a job from a function that connects its groups.
using MakeMesh = std::function<comm::Mesh(const comm::Mesh::Connect& connect)>;

/// As run_on_parts, with the groups of a mesh. Errors: also those of `make_mesh`.
int run_on_mesh(const RankJob& job, const MakeMesh& make_mesh,
                const std::function<void(const comm::Mesh&)>& body);

}  // namespace shardwise::cli
