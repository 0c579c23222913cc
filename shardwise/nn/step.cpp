#include "shardwise/nn/step.h"

#include "shardwise/kernels/rotary.h"

namespace shardwise::nn {

void check_step(const Step& step, int64_t b) {
  kernels::check_valid("step", step.valid, step.sequence.size(), b);
  TORCH_CHECK_VALUE(step.dropout >= 0 && step.dropout <= 1, "step: dropout must lie in [0, 1]; got ",
                    step.dropout);
  TORCH_CHECK_VALUE(step.attention_dropout >= 0 && step.attention_dropout < 1,
                    "step: attention_dropout must lie in [0, 1); got ", step.attention_dropout);
}

}  // namespace shardwise::nn
