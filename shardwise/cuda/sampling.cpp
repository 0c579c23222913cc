#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/kernels.h"
#include "shardwise/cuda/runtime.h"
#include "shardwise/kernels/logit_keys_cuda.h"

namespace shardwise::cuda {

void Kernels::logit_keys(const at::Tensor& keys, const at::Tensor& logits) const {
  if (logits.numel() == 0) return;
  with_type("logit_keys", logits.scalar_type(), [&]<class T>(T) {
    kernels::cuda::logit_keys<T>(
        {elements_<int64_t>(keys), elements<T>(logits), rows_of(logits), width_of(logits)}, current_stream());
  });
}

}  // namespace shardwise::cuda
