#include "shardwise/kernels/dropout.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/dropout_mask.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

at::Tensor apply(const at::Tensor& x, double p, RandomKey key, int64_t first_element) {
  const at::Tensor y = at::empty_like(x);
  if (const auto* device = device_of("dropout", x)) {
    device->dropout(y, x, p, key, first_element);
    return y;
  }
  const DropoutMask mask = mask_of(p, key);
  with_element_type("dropout", x, [&]<class T>(T) {
    const auto loops = dropout_loops<T>();
    const auto scale = static_cast<Accumulator<T>>(1 / (1 - p));
    for_ranges(x.numel(), 1, [&](int64_t begin, int64_t end) {
      loops.apply(elements_<T>(y) + begin, elements<T>(x) + begin, end - begin,
                  static_cast<uint64_t>(first_element + begin), mask, scale);
    });
  });
  return y;
}

}  // namespace

DropoutMask mask_of(double p, RandomKey key) {
  return {key.value, dropout_threshold(p)};
}

at::Tensor dropout(const at::Tensor& x, double p, RandomKey key, int64_t first_element) {
  const base::ProfiledOp profiled("dropout");
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "dropout: p must be in [0, 1]; got ", p, " [SW0406]");
  if (p == 0) return x;
  if (p == 1) return at::zeros_like(x);
  return apply(x.contiguous(), p, key, first_element);
}

}  // namespace shardwise::kernels
