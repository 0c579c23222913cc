#include "shardwise/launch/environment.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "shardwise/base/environment.h"
#include "shardwise/base/split.h"

namespace shardwise::launch {
namespace {

/// The variables by which a launcher passes its rank and world size to a process.
struct LauncherVariables {
  LaunchContext::Launcher launcher;
  const char* name;
  const char *rank, *world_size, *local_rank, *local_size;
};

constexpr LauncherVariables kTorchrun{
    LaunchContext::Launcher::torchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr LauncherVariables kOpenMpi{LaunchContext::Launcher::mpirun, "mpirun",
                                     "OMPI_COMM_WORLD_RANK",          "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK",    "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr LauncherVariables kHydra{
    LaunchContext::Launcher::mpirun, "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

bool is_set(const char* variable) {
  return base::env_text(variable).has_value();
}

std::string text_of(const char* variable, const char* launcher) {
  const auto value = base::env_text(variable);
  TORCH_CHECK_VALUE(value, "environment: all variables of ", launcher, " must be set; got no ", variable,
                    " [SW0106]");
  return *value;
}

int count_of(const char* variable, int least, const char* launcher) {
  text_of(variable, launcher);
  return base::env_count(variable, least, 0);
}

void check_rank(const char* rank_variable, int rank, const char* size_variable, int size) {
  TORCH_CHECK_VALUE(rank < size, "environment: ", rank_variable, " must be below ", size_variable, "; got ",
                    rank, " and ", size, " [SW0108]");
}

void check_at_most(const char* variable, int value, const char* bound_variable, int bound) {
  TORCH_CHECK_VALUE(value <= bound, "environment: ", variable, " must be at most ", bound_variable, "; got ",
                    value, " and ", bound, " [SW0109]");
}

/// `distribution` describes where the ranks are.
void check_single_node(bool is_single, int ranks, const std::string& distribution, const char* launcher) {
  TORCH_CHECK_VALUE(is_single, "environment: multi-node jobs must be started by Open MPI's mpirun; got ",
                    ranks, " ranks", distribution, "; let ", launcher,
                    " use one node, or start the ranks with Open MPI's mpirun [SW0110]");
}

LaunchContext context_from(const LauncherVariables& variables) {
  LaunchContext context;
  context.launcher = variables.launcher;
  context.rank = count_of(variables.rank, 0, variables.name);
  context.world_size = count_of(variables.world_size, 1, variables.name);
  context.local_rank = count_of(variables.local_rank, 0, variables.name);
  context.local_size = count_of(variables.local_size, 1, variables.name);
  check_rank(variables.rank, context.rank, variables.world_size, context.world_size);
  check_rank(variables.local_rank, context.local_rank, variables.local_size, context.local_size);
  check_at_most(variables.local_size, context.local_size, variables.world_size, context.world_size);
  // Local ranks are in the order of ranks.
  check_at_most(variables.local_rank, context.local_rank, variables.rank, context.rank);
  context.is_multi_node = context.local_size < context.world_size;
  check_single_node(!context.is_multi_node || variables.rank == kOpenMpi.rank, context.world_size,
                    fmt::format(", {} of them on this node", context.local_size), variables.name);
  return context;
}

LaunchContext from_launcher() {
  constexpr const char* kLauncher = "the launcher";
  LaunchContext context;
  context.launcher = LaunchContext::Launcher::launcher;
  context.rank = context.local_rank = count_of("SHARDWISE_RANK", 0, kLauncher);
  context.world_size = context.local_size = count_of("SHARDWISE_WORLD_SIZE", 1, kLauncher);
  context.job = text_of("SHARDWISE_JOB", kLauncher);
  check_rank("SHARDWISE_RANK", context.rank, "SHARDWISE_WORLD_SIZE", context.world_size);
  return context;
}

// After a restart the agent keeps its run id and address while ranks of the previous attempt may still be
// exiting: the restart count distinguishes the two.
LaunchContext from_torchrun() {
  LaunchContext context = context_from(kTorchrun);
  context.job = fmt::format("torchrun/{}/{}:{}/{}", text_of("TORCHELASTIC_RUN_ID", kTorchrun.name),
                            text_of("MASTER_ADDR", kTorchrun.name), text_of("MASTER_PORT", kTorchrun.name),
                            count_of("TORCHELASTIC_RESTART_COUNT", 0, kTorchrun.name));
  return context;
}

/// Returns "<pid>-<start time>" of the parent process, which unlike the pid alone is never reused.
/// Errors: c10::Error if /proc/<pid>/stat cannot be read.
std::string parent_process() {
  constexpr int kFieldsToStartTime =
      20;  // after the name, the only field that may contain spaces; proc(5), field 22
  const pid_t parent = getppid();
  std::ifstream file(fmt::format("/proc/{}/stat", parent));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string start_time;
  for (int i = 0; i < kFieldsToStartTime; ++i) fields >> start_time;
  TORCH_CHECK(fields, "environment: the parent's start time is read from /proc; got nothing from /proc/",
              parent, "/stat; set SHARDWISE_JOB [SW0113]");
  return fmt::format("{}-{}", parent, start_time);
}

// Open MPI names each job. Hydra does not, but one of its processes starts all ranks of a node.
LaunchContext from_mpirun(const LauncherVariables& variables) {
  LaunchContext context = context_from(variables);
  const auto user_name = base::env_text("SHARDWISE_JOB");
  const std::string job = base::env_text("PMIX_NAMESPACE").value_or("");
  context.job = user_name      ? fmt::format("named/{}", *user_name)
                : !job.empty() ? fmt::format("mpirun/{}", job)
                               : fmt::format("mpirun/{}", parent_process());
  return context;
}

// A batch script and an interactive shell have these variables too, in a step of one task: that is a job of
// one rank, which may launch ranks.
LaunchContext from_srun() {
  constexpr const char* kLauncher = "srun";
  LaunchContext context;
  context.world_size = count_of("SLURM_STEP_NUM_TASKS", 1, kLauncher);
  if (context.world_size == 1) return context;
  context.launcher = LaunchContext::Launcher::srun;
  context.rank = context.local_rank = count_of("SLURM_PROCID", 0, kLauncher);
  check_rank("SLURM_PROCID", context.rank, "SLURM_STEP_NUM_TASKS", context.world_size);
  const int nodes = count_of("SLURM_STEP_NUM_NODES", 1, kLauncher);
  check_single_node(nodes == 1, context.world_size, fmt::format(" on {} nodes", nodes), kLauncher);
  context.local_size = context.world_size;
  context.job =
      fmt::format("srun/{}.{}", text_of("SLURM_JOB_ID", kLauncher), text_of("SLURM_STEP_ID", kLauncher));
  return context;
}

// The innermost launcher is checked first: srun starts Hydra's helpers, and in a step of one task our
// launcher.
LaunchContext context_of_launcher() {
  if (is_set("SHARDWISE_RANK")) return from_launcher();
  if (is_set("RANK") || is_set("TORCHELASTIC_RUN_ID")) return from_torchrun();
  if (is_set(kOpenMpi.rank)) return from_mpirun(kOpenMpi);
  if (is_set(kHydra.local_rank)) return from_mpirun(kHydra);
  if (is_set("SLURM_STEP_NUM_TASKS")) return from_srun();
  return {};
}

// torchrun, mpirun and srun pass on what their user set. No message repeats a secret.
base::Secret secret_from_env() {
  const auto text = base::env_text("SHARDWISE_SECRET");
  if (!text) return {};
  const auto secret = base::Secret::parse(*text);
  TORCH_CHECK_VALUE(secret, "environment: SHARDWISE_SECRET must have 32 hexadecimal digits; got ",
                    text->size(), " characters, or others [SW0531]");
  return *secret;
}

base::Split split_over_nodes(int ranks, int nodes) {
  return base::Split::even("nodes", ranks, nodes);
}

/// Sets the node fields of `context` if SHARDWISE_NODES makes this machine act as several nodes.
void simulate_nodes(LaunchContext& context) {
  context.nodes = base::env_count("SHARDWISE_NODES", 1, 1);
  TORCH_CHECK_VALUE(!context.is_multi_node || context.nodes == 1,
                    "environment: SHARDWISE_NODES must be 1 or unset in a job on several real nodes; got ",
                    context.nodes, " for ", context.world_size, " ranks, ", context.local_size,
                    " of them on this node [SW0112]");
  if (context.is_multi_node || context.launcher == LaunchContext::Launcher::self)
    return;  // the ranks that it launches will be assigned to nodes
  TORCH_CHECK_VALUE(context.nodes <= context.world_size,
                    "environment: SHARDWISE_NODES must be at most the number of ranks; got ", context.nodes,
                    " for ", context.world_size, " [SW0111]");
  context.node = context.node_of(context.rank);
  const base::Range ranks = split_over_nodes(context.world_size, context.nodes).range(context.node);
  context.local_rank = context.rank - static_cast<int>(ranks.begin);
  context.local_size = static_cast<int>(ranks.size());
}

struct LauncherHint {
  std::string launcher, hint;
};

/// `ranks` are those that the flags ask for, `world` those that the launcher started.
LauncherHint hint_for(LaunchContext::Launcher launcher, int64_t ranks, int64_t world) {
  switch (launcher) {
    case LaunchContext::Launcher::self:
      return {"no launcher", ""};
    case LaunchContext::Launcher::launcher:
      return {"the launcher", ""};
    case LaunchContext::Launcher::torchrun:
      return {"torchrun",
              fmt::format("; give degrees whose product is {}, or run torchrun with --nproc-per-node {}",
                          world, ranks)};
    case LaunchContext::Launcher::mpirun:
      return {"mpirun",
              fmt::format("; give degrees whose product is {}, or run mpirun with -n {}", world, ranks)};
    case LaunchContext::Launcher::srun:
      return {"srun",
              fmt::format("; give degrees whose product is {}, or run srun with --ntasks {}", world, ranks)};
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace

bool LaunchContext::may_span_nodes(const std::vector<int>& ranks) const {
  return ranks.size() > 1 && (is_multi_node || node_of(ranks.front()) != node_of(ranks.back()));
}

int LaunchContext::node_of(int rank_in_job) const {
  TORCH_INTERNAL_ASSERT(!is_multi_node);
  return split_over_nodes(world_size, nodes).holders(rank_in_job).front();
}

LaunchContext launch_context_from_env() {
  LaunchContext context = context_of_launcher();
  context.secret = secret_from_env();
  simulate_nodes(context);
  return context;
}

void check_world_size(const LaunchContext& context, int64_t product_of_degrees) {
  const LauncherHint hint = hint_for(context.launcher, product_of_degrees, context.world_size);
  TORCH_CHECK_VALUE(context.world_size == product_of_degrees,
                    "launch: the number of ranks must equal the product of the degrees of parallelism; got ",
                    context.world_size, " from ", hint.launcher, " for degrees of ", product_of_degrees,
                    hint.hint, " [SW0114]");
}

}  // namespace shardwise::launch
