#include "shardwise/nn/dropout.h"

#include "shardwise/base/mutation.h"
#include "shardwise/kernels/dropout.h"
#include "shardwise/parallel/conjugate.h"

namespace shardwise::nn {

kernels::RandomKey mask_key(const kernels::RandomKey& step_key, const Place& place) {
  return step_key.fold(place.layer).fold(place.site);
}

namespace detail {

at::Tensor dropout(const at::Tensor& x, const Step& step, Place place, int64_t first_element) {
  if (step.dropout == 0) return x;
  const auto key = mask_key(step.key, place);
  if (base::mutated(base::Mutation::reuse_random_key)) first_element = 0;
  const auto masked = [p = step.dropout, key, first_element](const at::Tensor& value) {
    return kernels::dropout(value.contiguous(), p, key, first_element);
  };
  return parallel::conjugate(x, masked, masked);
}

}  // namespace detail
}  // namespace shardwise::nn
