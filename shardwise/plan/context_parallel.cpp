#include "shardwise/plan/context_parallel.h"

#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

int64_t local_key_value_bytes(const Workload& workload, int rank) {
  const Sizes sizes(workload, rank);
  return sizes.features(sizes.key_features() + sizes.value_features());
}

}  // namespace

int64_t gathered_key_value_bytes(const Workload& workload, int rank) {
  return workload.cp > 1 ? workload.cp * local_key_value_bytes(workload, rank) : 0;
}

Passes context_communication(const Workload& workload, int rank) {
  if (workload.cp == 1) return {};
  const Traffic once{1, (workload.cp - 1) * local_key_value_bytes(workload, rank)};
  const int64_t gathers = workload.recompute == Recompute::full ? 2 : 1;  // of the repeated forward too
  Passes passes;
  passes.forward.all_gather = once;
  passes.backward.all_gather = {gathers, gathers * once.bytes};
  passes.backward.reduce_scatter = once;
  return passes;
}

}  // namespace shardwise::plan
