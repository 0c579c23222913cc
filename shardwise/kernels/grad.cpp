#include "shardwise/kernels/grad.h"

#include <ATen/ops/sum.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/bf16_product.h"
#include "shardwise/kernels/column_sum_isa.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/product.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/kernels/widened_product.h"

namespace shardwise::kernels {

void add_weight_grad_(at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& x) {
  const base::ProfiledOp profiled("weight_gradient");
  TORCH_CHECK_VALUE(dy.dim() == 2 && x.dim() == 2,
                    "add_weight_grad: dy and x must be [n, o] and [n, i]; got ", dy.sizes(), " and ",
                    x.sizes(), " [SW0410]");
  check_tensor("add_weight_grad", "x", x, {dy.size(0), x.size(1)}, dy.scalar_type());
  check_output("add_weight_grad", "main_grad", main_grad, {dy.size(1), x.size(1)},
               accumulator_type(dy.scalar_type()));
  const DeviceKernels* const device = device_of("add_weight_grad", main_grad, dy, x);
  if (dy.scalar_type() == main_grad.scalar_type()) {
    add_product_(main_grad, dy.t(), x);
  } else if (device != nullptr) {
    device->add_weight_grad(main_grad, dy, x);
  } else if (dy.scalar_type() == at::kBFloat16 && has_bf16_products()) {
    add_bf16_product_(main_grad, dy.contiguous(), x.contiguous());
  } else if (dy.scalar_type() == at::kBFloat16) {
    add_widened_product_(main_grad, dy.contiguous(), x.contiguous());
  } else {
    add_product_(main_grad, dy.to(at::kFloat).t(), x.to(at::kFloat));
  }
}

void add_bias_grad_(at::Tensor& main_grad, const at::Tensor& dy_any) {
  const base::ProfiledOp profiled("bias_gradient");
  const at::Tensor dy = dy_any.contiguous();
  TORCH_CHECK_VALUE(dy.dim() == 2, "add_bias_grad: dy must be [n, o]; got ", dy.sizes(), " [SW0411]");
  const int64_t rows = dy.size(0), width = dy.size(1);
  check_output("add_bias_grad", "main_grad", main_grad, {width}, accumulator_type(dy.scalar_type()));
  if (device_of("add_bias_grad", main_grad, dy)) {
    main_grad.add_(at::sum(dy, /*dim=*/0, /*keepdim=*/false, main_grad.scalar_type()));
    return;
  }
  with_element_type("add_bias_grad", dy, [&]<class T>(T) {
    for_ranges(width, rows, [&](int64_t begin, int64_t end) {
      column_sum_loops<T>().add_rows(elements_<Accumulator<T>>(main_grad) + begin, elements<T>(dy) + begin,
                                     rows, end - begin, width);
    });
  });
}

}  // namespace shardwise::kernels
