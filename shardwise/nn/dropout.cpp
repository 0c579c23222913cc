#include "shardwise/nn/dropout.h"

#include "shardwise/base/mutation.h"
#include "shardwise/kernels/dropout.h"
#include "shardwise/parallel/conjugate.h"

namespace shardwise::nn {

kernels::RandomKey mask_key(const kernels::RandomKey& step_key, const Place& place) {
  return step_key.fold(base::mutated(base::Mutation::mask_of_every_layer) ? 0 : place.layer)
      .fold(base::mutated(base::Mutation::mask_of_every_site) ? Place::embedding : place.site);
}

namespace detail {

at::Tensor dropout(const at::Tensor& x, const Step& step, Place place, int64_t first_element, Value value) {
  if (step.dropout == 0) return x;
  auto key = mask_key(step.key, place);
  if (base::mutated(base::Mutation::mask_by_rank)) key = key.fold(step.group.rank());
  if (base::mutated(base::Mutation::reuse_random_key)) first_element = 0;
  const auto masked_by = [p = step.dropout, first_element](const kernels::RandomKey& drawn_from) {
    return [=](const at::Tensor& value) {
      return kernels::dropout(value.contiguous(), p, drawn_from, first_element);
    };
  };
  const bool redraws = base::mutated(base::Mutation::redraw_mask);
  const parallel::LinearMap forward =
      value == Value::unused ? parallel::LinearMap(parallel::identity) : masked_by(key);
  return parallel::conjugate(x, forward, masked_by(redraws ? key.fold(1) : key));
}

}  // namespace detail
}  // namespace shardwise::nn
