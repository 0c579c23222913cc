#include "shardwise/launch/affinity.h"

#include <c10/util/Exception.h>
#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "shardwise/base/environment.h"
#include "shardwise/base/split.h"
#include "shardwise/launch/cgroup.h"

namespace shardwise::launch {
namespace {

using Bitmap = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;
using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  TORCH_CHECK(hwloc_topology_init(&topology) == 0,
              "affinity: hwloc cannot be initialized; got: ", std::strerror(errno), " [SW0139]");
  Topology result(topology, &hwloc_topology_destroy);
  TORCH_CHECK(hwloc_topology_load(topology) == 0,
              "affinity: hwloc cannot read the topology of this machine; got: ", std::strerror(errno),
              " [SW0140]");
  return result;
}

// The cores that this process may run on, in hwloc's order (neighbors are adjacent), each with its allowed
// hardware threads.
class Cores {
 public:
  Cores() : topology_(load_topology()) {
    const Bitmap allowed(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
    if (hwloc_get_cpubind(topology_.get(), allowed.get(), HWLOC_CPUBIND_PROCESS) != 0) {
      hwloc_bitmap_copy(allowed.get(), hwloc_topology_get_allowed_cpuset(topology_.get()));
    }
    hwloc_obj_t core = nullptr;
    while ((core = hwloc_get_next_obj_by_type(topology_.get(), HWLOC_OBJ_CORE, core))) {
      Bitmap threads(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
      hwloc_bitmap_and(threads.get(), core->cpuset, allowed.get());
      if (!hwloc_bitmap_iszero(threads.get())) cores_.push_back(std::move(threads));
    }
  }

  int count() const { return static_cast<int>(cores_.size()); }

  cpu_set_t processors() const {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const Bitmap& core : cores_) {
      for (int i = hwloc_bitmap_first(core.get()); i >= 0 && i < CPU_SETSIZE;
           i = hwloc_bitmap_next(core.get(), i)) {
        CPU_SET(i, &set);
      }
    }
    return set;
  }

  void bind(base::Range run) const {
    const Bitmap threads(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
    for (int64_t i = run.begin; i < run.end; ++i)
      hwloc_bitmap_or(threads.get(), threads.get(), cores_[i].get());
    TORCH_CHECK(hwloc_set_cpubind(topology_.get(), threads.get(), HWLOC_CPUBIND_PROCESS) == 0,
                "affinity: the system refuses to bind this process to ", run.size(), " of its ", count(),
                " cores [SW0141]");
  }

 private:
  Topology topology_;
  std::vector<Bitmap> cores_;
};

int ranks_with(const std::vector<AvailableCpus>& available, const cpu_set_t& processors) {
  return static_cast<int>(std::count_if(available.begin(), available.end(), [&](const AvailableCpus& other) {
    return CPU_EQUAL(&other.processors, &processors);
  }));
}

// Read once: after binding, the process would see only its share.
const Cores& cores() {
  static const Cores all;
  return all;
}

int threads_from_environment(int fallback) {
  constexpr int kThreadsPerCore = 4;  // more only cost memory and time
  const char* variable = base::env_text("SHARDWISE_THREADS") ? "SHARDWISE_THREADS" : "OMP_NUM_THREADS";
  const int threads = base::env_count(variable, 1, fallback),
            most = kThreadsPerCore * std::max(1, cores().count());
  TORCH_CHECK_VALUE(threads <= most, "environment: ", variable, " must be at most ", most, ", ",
                    kThreadsPerCore, " threads for each usable core; got ", threads, " [SW0530]");
  return threads;
}

namespace fs = std::filesystem;

constexpr double kUnlimited = 1e6;

// cpu.max contains "quota period" in microseconds, or "max period".
double version_2(const fs::path& directory) {
  std::ifstream file(directory / "cpu.max");
  double quota, period;
  return file >> quota >> period ? quota / period : kUnlimited;
}

// A quota of -1 means unlimited.
double version_1(const fs::path& directory) {
  std::ifstream quota_file(directory / "cpu.cfs_quota_us"), period_file(directory / "cpu.cfs_period_us");
  double quota, period;
  return quota_file >> quota && period_file >> period && quota > 0 ? quota / period : kUnlimited;
}

}  // namespace

double cpu_quota(const std::string& cgroups, const std::string& root) {
  return least_of_cgroups({"cpu", version_1, version_2, kUnlimited}, cgroups, root);
}

const AvailableCpus& available_cpus() {
  static const AvailableCpus cpus{cores().processors(), std::max(1, cores().count()),
                                  static_cast<int>(std::ceil(std::min(cpu_quota(), 1e6)))};
  return cpus;
}

CoreShare share_out(const std::vector<AvailableCpus>& available, int rank) {
  const int ranks = static_cast<int>(available.size());
  CoreShare share{0, 0, INT_MAX};
  for (int peer = 0; peer < ranks; ++peer) {
    const int sharers =
        std::max(1, ranks_with(available, available[peer].processors));  // at least the rank itself
    share.threads = std::min({share.threads, available[peer].cores / sharers, available[peer].quota / ranks});
    if (!CPU_EQUAL(&available[peer].processors, &available[rank].processors)) continue;
    share.index += peer < rank;
    share.count += 1;
  }
  share.threads = threads_from_environment(std::max(1, share.threads));
  return share;
}

void bind_to(const CoreShare& share) {
  if (share.count == 1 || share.count > std::min(available_cpus().cores, available_cpus().quota)) return;
  cores().bind(base::Split::even("cores", cores().count(), share.count).range(share.index));
}

void check_thread_variables() {
  threads_from_environment(1);
}

}  // namespace shardwise::launch
