#include "shardwise/comm/shm/shm.h"

#include <c10/util/Exception.h>

#include "shardwise/comm/shm/backend.h"

namespace shardwise::comm::shm {

Group connect(const Options& options) {
  TORCH_CHECK_VALUE(options.size >= 1 && options.rank >= 0 && options.rank < options.size,
                    "connect: rank must be in [0, size); got rank ", options.rank, " of ", options.size);
  TORCH_CHECK_VALUE(options.timeout.count() > 0, "connect: a timeout must be above 0 ms; got ",
                    options.timeout.count());
  const int64_t one_shot_bytes = options.one_shot_bytes.value_or(0);
  TORCH_CHECK_VALUE(one_shot_bytes >= 0 && one_shot_bytes <= int64_t(kInlineBytes),
                    "connect: one_shot_bytes must be from 0 to ", kInlineBytes, "; got ", one_shot_bytes);
  if (options.size == 1) return Group();
  auto transport = std::make_shared<Transport>(meet(options), options.rank, options.timeout);
  return Group(c10::make_intrusive<Backend>(transport), transport);
}

std::optional<OneShotLimit> one_shot_limit(const Group& group) {
  const auto* transport = dynamic_cast<const Transport*>(group.symmetric());
  if (transport == nullptr) return std::nullopt;
  return transport->one_shot();
}

}  // namespace shardwise::comm::shm
