#include "shardwise/infer/ids.h"

#include <c10/util/Exception.h>

namespace shardwise::infer {

void check_ids(const std::vector<int64_t>& ids, const model::Config& config, const std::string& whose) {
  for (const int64_t id : ids) {
    TORCH_CHECK_VALUE(id >= 0 && id < config.vocab_size, whose, " ids must lie from 0 to below ",
                      config.vocab_size, "; got ", id);
  }
}

}  // namespace shardwise::infer
