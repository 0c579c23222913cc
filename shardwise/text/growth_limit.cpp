#include "shardwise/text/growth_limit.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::text {

void GrowthLimit::fail(size_t bytes) const {
  TORCH_CHECK_VALUE(false, "tokenizer: its steps must make at most ", std::min(most(), kMaxBytes),
                    " bytes of ", input_bytes_, "; got ", output_bytes_ + bytes, " [SW0680]");
}

}  // namespace shardwise::text
