#include "shardwise/comm/shm/shm.h"

#include "shardwise/comm/shm/backend.h"

namespace shardwise::comm::shm {

Group connect(const Options& options) {
  check_options(options);
  if (options.size == 1) return Group();
  auto transport = std::make_shared<Transport>(rendezvous(options), options.rank, options.timeout);
  return Group(c10::make_intrusive<Backend>(transport), transport);
}

std::optional<OneShotLimit> one_shot_limit(const Group& group) {
  const auto* transport = dynamic_cast<const Transport*>(group.symmetric_heap());
  if (transport == nullptr) return std::nullopt;
  return transport->one_shot();
}

}  // namespace shardwise::comm::shm
