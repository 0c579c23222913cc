#include "shardwise/kernels/logit_keys.h"

#include <ATen/ops/empty.h>

#include <bit>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/device.h"

namespace shardwise::kernels {

at::Tensor logit_keys(const at::Tensor& logits) {
  constexpr const char* op = "logit_keys";
  const base::ProfiledOp profiled(op);
  const DeviceKernels* const device = device_of(op, logits);
  TORCH_CHECK_VALUE(device != nullptr, op, ": logits must be on a device with kernels; got ", logits.device(),
                    " [SW0852]");
  const at::Tensor keys = at::empty(logits.sizes(), logits.options().dtype(at::kLong));
  device->logit_keys(keys, logits.contiguous());
  return keys;
}

KeyedLogit logit_of_key(int64_t key) {
  const auto ordered = static_cast<int32_t>(key >> 32);
  const auto logit = std::bit_cast<float>(ordered ^ (ordered >> 31 & 0x7fffffff));
  return {static_cast<uint32_t>(~key), logit};
}

}  // namespace shardwise::kernels
