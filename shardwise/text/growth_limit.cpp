#include "shardwise/text/growth_limit.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::text {

void GrowthLimit::fail(size_t bytes) const {
  TORCH_CHECK_VALUE(false, "tokenizer: normalizer, pre_tokenizer and decoder must lengthen a text of ",
                    input_bytes_, " bytes to at most ", std::min(most(), kMaxBytes), "; got ",
                    output_bytes_ + bytes, " [SW0680]");
}

}  // namespace shardwise::text
