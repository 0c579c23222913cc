#include "shardwise/comm/environment.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "shardwise/base/split.h"
#include "shardwise/comm/parent_process.h"

namespace shardwise::comm {
namespace {

/// One way of starting ranks: the variables that tell a process its place.
struct Starter {
  LaunchContext::Launcher launcher;
  const char* name;
  const char *rank, *world_size, *local_rank, *local_size;
};

constexpr Starter kTorchrun{
    LaunchContext::Launcher::torchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Starter kOpenMpi{LaunchContext::Launcher::mpirun, "mpirun",
                           "OMPI_COMM_WORLD_RANK",          "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",    "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Starter kHydra{
    LaunchContext::Launcher::mpirun, "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

bool is_set(const char* variable) {
  return std::getenv(variable) != nullptr;
}

std::string text_of(const char* variable, const char* starter) {
  const char* value = std::getenv(variable);
  TORCH_CHECK_VALUE(value, "environment: ", starter, " sets all of its variables; got no ", variable);
  return value;
}

int count_of(const char* variable, int least, const char* starter) {
  text_of(variable, starter);
  return count_from_environment(variable, least, 0);
}

void check_rank(const char* rank_variable, int rank, const char* size_variable, int size) {
  TORCH_CHECK_VALUE(rank < size, "environment: ", rank_variable, " is below ", size_variable, "; got ", rank,
                    " and ", size);
}

void check_part(const char* part_variable, int part, const char* whole_variable, int whole) {
  TORCH_CHECK_VALUE(part <= whole, "environment: ", part_variable, " is at most ", whole_variable, "; got ",
                    part, " and ", whole);
}

/// `spread` says where the ranks are.
void check_one_host(bool is_one, int ranks, const std::string& spread, const char* starter) {
  TORCH_CHECK_VALUE(is_one, "environment: shared memory serves the ranks of one host; got ", ranks, " ranks",
                    spread, "; let ", starter, " use one host, or start the ranks by Open MPI's mpirun");
}

LaunchContext place_by(const Starter& starter) {
  LaunchContext place;
  place.launcher = starter.launcher;
  place.rank = count_of(starter.rank, 0, starter.name);
  place.world_size = count_of(starter.world_size, 1, starter.name);
  place.local_rank = count_of(starter.local_rank, 0, starter.name);
  place.local_size = count_of(starter.local_size, 1, starter.name);
  check_rank(starter.rank, place.rank, starter.world_size, place.world_size);
  check_rank(starter.local_rank, place.local_rank, starter.local_size, place.local_size);
  check_part(starter.local_size, place.local_size, starter.world_size, place.world_size);
  check_part(starter.local_rank, place.local_rank, starter.rank, place.rank);  // in the ranks' order
  place.is_multi_node = place.local_size < place.world_size;
  check_one_host(!place.is_multi_node || starter.rank == kOpenMpi.rank, place.world_size,
                 fmt::format(", {} of them here", place.local_size), starter.name);
  return place;
}

LaunchContext from_launcher() {
  constexpr const char* kStarter = "the launcher";
  LaunchContext place;
  place.launcher = LaunchContext::Launcher::launcher;
  place.rank = place.local_rank = count_of("SHARDWISE_RANK", 0, kStarter);
  place.world_size = place.local_size = count_of("SHARDWISE_WORLD_SIZE", 1, kStarter);
  place.job = text_of("SHARDWISE_JOB", kStarter);
  check_rank("SHARDWISE_RANK", place.rank, "SHARDWISE_WORLD_SIZE", place.world_size);
  return place;
}

// After a restart the agent keeps run id and address, while ranks of the last try may still be ending: the
// count keeps both apart.
LaunchContext from_torchrun() {
  LaunchContext place = place_by(kTorchrun);
  place.job = fmt::format("torchrun/{}/{}:{}/{}", text_of("TORCHELASTIC_RUN_ID", kTorchrun.name),
                          text_of("MASTER_ADDR", kTorchrun.name), text_of("MASTER_PORT", kTorchrun.name),
                          count_of("TORCHELASTIC_RESTART_COUNT", 0, kTorchrun.name));
  return place;
}

// Open MPI names each job. Hydra does not, but one process of it starts all ranks of a host.
LaunchContext from_mpirun(const Starter& starter) {
  LaunchContext place = place_by(starter);
  const char* own_name = std::getenv("SHARDWISE_JOB");
  const char* job = std::getenv("PMIX_NAMESPACE");
  place.job = own_name      ? fmt::format("named/{}", own_name)
              : job && *job ? fmt::format("mpirun/{}", job)
                            : fmt::format("mpirun/{}", parent_process());
  return place;
}

// A batch script and an interactive shell have these variables too, in a step of one task: that is a job of
// one, which may launch ranks.
LaunchContext from_srun() {
  constexpr const char* kStarter = "srun";
  LaunchContext place;
  place.world_size = count_of("SLURM_STEP_NUM_TASKS", 1, kStarter);
  if (place.world_size == 1) return place;
  place.launcher = LaunchContext::Launcher::srun;
  place.rank = place.local_rank = count_of("SLURM_PROCID", 0, kStarter);
  check_rank("SLURM_PROCID", place.rank, "SLURM_STEP_NUM_TASKS", place.world_size);
  const int hosts = count_of("SLURM_STEP_NUM_NODES", 1, kStarter);
  check_one_host(hosts == 1, place.world_size, fmt::format(" on {}", hosts), kStarter);
  place.local_size = place.world_size;
  place.job =
      fmt::format("srun/{}.{}", text_of("SLURM_JOB_ID", kStarter), text_of("SLURM_STEP_ID", kStarter));
  return place;
}

// Inner starters come first: srun starts Hydra's helpers, and in a step of one task our launcher.
LaunchContext place_in_world() {
  if (is_set("SHARDWISE_RANK")) return from_launcher();
  if (is_set("RANK") || is_set("TORCHELASTIC_RUN_ID")) return from_torchrun();
  if (is_set(kOpenMpi.rank)) return from_mpirun(kOpenMpi);
  if (is_set(kHydra.local_rank)) return from_mpirun(kHydra);
  if (is_set("SLURM_STEP_NUM_TASKS")) return from_srun();
  return {};
}

base::Split deal(int ranks, int hosts) {
  return base::Split::even("hosts", ranks, hosts);
}

/// `place.hosts` machines played by this one.
void pretend_hosts(LaunchContext& place) {
  place.hosts = count_from_environment("SHARDWISE_NODES", 1, 1);
  TORCH_CHECK_VALUE(!place.is_multi_node || place.hosts == 1,
                    "environment: SHARDWISE_NODES makes one machine play several; got ", place.hosts, " for ",
                    place.world_size, " ranks, ", place.local_size, " of them here");
  if (place.is_multi_node || place.launcher == LaunchContext::Launcher::self)
    return;  // the launcher's ranks will be dealt
  TORCH_CHECK_VALUE(place.hosts <= place.world_size,
                    "environment: SHARDWISE_NODES is at most the number of ranks; got ", place.hosts, " for ",
                    place.world_size);
  place.host = place.node_of(place.rank);
  const base::Range here = deal(place.world_size, place.hosts).range(place.host);
  place.local_rank = place.rank - static_cast<int>(here.begin);
  place.local_size = static_cast<int>(here.size());
}

struct Told {
  std::string starter, hint;
};

Told told_by(LaunchContext::Launcher by, int64_t ranks) {
  switch (by) {
    case LaunchContext::Launcher::self:
      return {"no launcher", ""};
    case LaunchContext::Launcher::launcher:
      return {"the launcher", ""};
    case LaunchContext::Launcher::torchrun:
      return {"torchrun", fmt::format("; run torchrun with --nproc-per-node {}", ranks)};
    case LaunchContext::Launcher::mpirun:
      return {"mpirun", fmt::format("; run mpirun with -n {}", ranks)};
    case LaunchContext::Launcher::srun:
      return {"srun", fmt::format("; run srun with --ntasks {}", ranks)};
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace

bool LaunchContext::may_span_nodes(const std::vector<int>& ranks) const {
  return ranks.size() > 1 && (is_multi_node || node_of(ranks.front()) != node_of(ranks.back()));
}

int LaunchContext::node_of(int rank_in_job) const {
  TORCH_INTERNAL_ASSERT(!is_multi_node);
  return deal(world_size, hosts).holders(rank_in_job).front();
}

int count_from_environment(const char* variable, int least, int fallback) {
  const char* text = std::getenv(variable);
  if (!text) return fallback;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, value);
  TORCH_CHECK_VALUE(error == std::errc() && stopped == end && value >= least, "environment: ", variable,
                    " is a whole number, at least ", least, "; got '", text, "'");
  return value;
}

LaunchContext launch_context_from_env() {
  LaunchContext place = place_in_world();
  pretend_hosts(place);
  return place;
}

void check_world_size(const LaunchContext& place, int64_t product_of_degrees) {
  const Told told = told_by(place.launcher, product_of_degrees);
  TORCH_CHECK_VALUE(place.world_size == product_of_degrees,
                    "launch: the number of ranks equals the product of the degrees of parallelism; got ",
                    place.world_size, " from ", told.starter, " for degrees of ", product_of_degrees,
                    told.hint);
}

}  // namespace shardwise::comm
