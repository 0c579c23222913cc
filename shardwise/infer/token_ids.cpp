#include "shardwise/infer/token_ids.h"

#include <c10/util/Exception.h>

namespace shardwise::infer {

void check_token_ids(const std::vector<int64_t>& ids, const config::Config& config,
                     const std::string& whose) {
  for (const int64_t id : ids) {
    TORCH_CHECK_VALUE(id >= 0 && id < config.vocab_size, whose, " ids must be in [0, ", config.vocab_size,
                      "); got ", id, " [SW0206]");
  }
}

}  // namespace shardwise::infer
