#include "shardwise/cuda/partial.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "shardwise/cuda/elements.h"
#include "shardwise/cuda/runtime.h"

namespace shardwise::cuda {

Partial::Partial(bool is_wanted, int64_t rows, at::IntArrayRef sums, const at::Tensor& like)
    : blocks_(static_cast<int>(std::clamp<int64_t>(rows, 1, 2 * multiprocessors()))) {
  if (!is_wanted) return;
  at::DimVector shape{blocks_};
  shape.append(sums.begin(), sums.end());
  sums_ = at::empty(shape, like.options().dtype(at::kFloat));
}

float* Partial::data() const {
  return elements_<float>(sums_);
}

}  // namespace shardwise::cuda
