#include "shardwise/comm/affinity.h"

#include <c10/util/Exception.h>
#include <hwloc.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "shardwise/base/split.h"
#include "shardwise/comm/affinity_quota.h"

namespace shardwise::comm {
namespace {

using Bitmap = std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)>;
using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  TORCH_CHECK(hwloc_topology_init(&topology) == 0, "affinity: hwloc does not start");
  Topology result(topology, &hwloc_topology_destroy);
  TORCH_CHECK(hwloc_topology_load(topology) == 0, "affinity: hwloc does not read this machine");
  return result;
}

// The cores that this process may run on, neighbours next to each other, each with its allowed hardware
// threads.
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

  void bind(base::Range run) const {
    const Bitmap threads(hwloc_bitmap_alloc(), &hwloc_bitmap_free);
    for (int64_t i = run.begin; i < run.end; ++i)
      hwloc_bitmap_or(threads.get(), threads.get(), cores_[i].get());
    TORCH_CHECK(hwloc_set_cpubind(topology_.get(), threads.get(), HWLOC_CPUBIND_PROCESS) == 0,
                "affinity: the system refuses to bind this process to ", run.size(), " of its ", count(),
                " cores");
  }

 private:
  Topology topology_;
  std::vector<Bitmap> cores_;
};

// Read once: after binding, the process would see its own share only.
const Cores& cores() {
  static const Cores all;
  return all;
}

}  // namespace

int usable_cores() {
  static const int count = std::max(1, std::min(cores().count(), static_cast<int>(std::ceil(cpu_quota()))));
  return count;
}

int threads_per_rank(int local_size) {
  if (std::getenv("SHARDWISE_THREADS")) return count_from_environment("SHARDWISE_THREADS", 1, 1);
  return count_from_environment("OMP_NUM_THREADS", 1, std::max(1, usable_cores() / local_size));
}

bool bind_to_cores(const Place& place) {
  if (place.local_size == 1 || place.local_size > usable_cores()) return false;
  cores().bind(base::Split::even("cores", cores().count(), place.local_size).range(place.local_rank));
  return true;
}

}  // namespace shardwise::comm
