#include "shardwise/parallel/placement.h"

#include <ATen/ops/add.h>

namespace shardwise::parallel::detail {

at::Tensor sum(const at::Tensor& a, const at::Tensor& b) {
  return at::add(a, b);
}

}  // namespace shardwise::parallel::detail
