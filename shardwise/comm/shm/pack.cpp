#include "shardwise/comm/shm/pack.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

namespace shardwise::comm::shm {

void check_on_cpu(const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.is_cpu(), "shared memory: tensors must be on the CPU; got one on ", x.device(),
                    " [SW0514]");
}

void pack(std::byte* target, const at::Tensor& x) {
  check_on_cpu(x);
  if (x.numel() == 0) return;  // the tensor may have no storage
  if (x.is_contiguous()) {
    std::memcpy(target, x.const_data_ptr(), x.nbytes());
  } else {
    const c10::NoGradGuard no_grad;
    at::from_blob(target, x.sizes(), x.options()).copy_(x);
  }
}

void unpack(at::Tensor& target, const std::byte* source) {
  if (target.numel() == 0) return;
  if (target.is_contiguous()) {
    std::memcpy(target.mutable_data_ptr(), source, target.nbytes());
  } else {
    const c10::NoGradGuard no_grad;  // any call may process messages
    target.copy_(at::from_blob(const_cast<std::byte*>(source), target.sizes(), target.options()));
  }
}

}  // namespace shardwise::comm::shm
