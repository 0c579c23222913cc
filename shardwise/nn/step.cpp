#include "shardwise/nn/step.h"

#include "shardwise/kernels/rotary.h"

namespace shardwise::nn {
namespace {

void check_cached(const Step& step, int64_t b) {
  const int64_t rows = rows_of(step.cached);
  TORCH_CHECK_VALUE(b == 1 && rows == step.sequence.size(),
                    "step: the rows of cached sequences must be a batch of [", rows, ", 1] tokens; got [",
                    step.sequence.size(), ", ", b, "] [SW0443]");
  TORCH_CHECK_VALUE(step.valid.empty() && step.dropout == 0 && step.attention_dropout == 0,
                    "step: cached sequences must have no padding and no dropout; got one [SW0444]");
  for (const auto& [cache, count] : step.cached) {
    TORCH_CHECK_VALUE(count > 0 && cache->length + count <= cache->capacity(),
                      "step: new tokens must fit the cache's capacity of ", cache->capacity(), "; got ",
                      count, " after ", cache->length, " [SW0445]");
  }
}

}  // namespace

void check_step(const Step& step, int64_t b) {
  kernels::check_valid_rows("step", step.valid, step.sequence.size(), b);
  TORCH_CHECK_VALUE(step.dropout >= 0 && step.dropout <= 1, "step: dropout must be in [0, 1]; got ",
                    step.dropout, " [SW0449]");
  TORCH_CHECK_VALUE(step.attention_dropout >= 0 && step.attention_dropout < 1,
                    "step: attention_dropout must be in [0, 1); got ", step.attention_dropout, " [SW0450]");
  if (!step.cached.empty()) check_cached(step, b);
}

}  // namespace shardwise::nn
