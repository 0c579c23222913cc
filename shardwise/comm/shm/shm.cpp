#include "shardwise/comm/shm/shm.h"

#include "shardwise/comm/shm/rendezvous.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {

Group connect(const Options& options) {
  check_options(options);
  if (options.size == 1) return Group();
  return Group(std::make_shared<Transport>(rendezvous(options), options.rank, options.timeout));
}

std::optional<OneShotLimit> one_shot_limit(const Group& group) {
  const SymmetricHeap* const heap = group.symmetric_heap();
  if (heap == nullptr) return std::nullopt;
  return heap->one_shot();
}

}  // namespace shardwise::comm::shm
