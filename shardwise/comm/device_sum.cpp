#include "shardwise/comm/device_sum.h"

#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>

namespace shardwise::comm {

void sum_on_device(at::Tensor& out, const std::vector<at::Tensor>& partials) {
  const c10::NoGradGuard no_grad;
  at::Tensor total =
      partials.front().to(at::toOpMathType(out.scalar_type()), /*non_blocking=*/false, /*copy=*/true);
  for (size_t rank = 1; rank < partials.size(); ++rank) total.add_(partials[rank]);
  out.copy_(total);
}

}  // namespace shardwise::comm
