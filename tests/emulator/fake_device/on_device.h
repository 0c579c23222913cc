// What tests of the fake device share.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "shardwise/kernels/rms_norm_cuda.h"
#include "tests/support/fake_device/device.h"

namespace shardwise::fake_device {

inline at::TensorOptions on_device(at::ScalarType dtype = at::kFloat) {
  install();
  return at::TensorOptions(device()).dtype(dtype);
}

/// Returns RMSNorm of the rows of x with eps = 0, by the project's kernel, which is only queued.
inline at::Tensor queue_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  const int64_t rows = x.size(0), h = x.size(1);
  const at::Tensor y = at::empty({rows, h}, on_device()), rstd = at::empty({rows}, on_device());
  kernels::cuda::rms_norm(
      kernels::cuda::RmsNorm<float>{y.data_ptr<float>(), rstd.data_ptr<float>(), x.const_data_ptr<float>(),
                                    weight.const_data_ptr<float>(), rows, static_cast<int>(h), 0.0f},
      stream());
  return y;
}

}  // namespace shardwise::fake_device
