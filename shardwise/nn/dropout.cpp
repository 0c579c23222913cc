#include "shardwise/nn/dropout.h"

#include "shardwise/kernels/dropout.h"
#include "shardwise/parallel/conjugate.h"

namespace shardwise::nn {

namespace {

/// Separates the masks' random stream from that of the initial weights.
constexpr uint64_t kMasks = 1;

}  // namespace

kernels::RandomKey masks_key(uint64_t seed, int64_t step, int64_t micro_batch) {
  return kernels::RandomKey::of(seed).fold(kMasks).fold(step).fold(micro_batch);
}

kernels::RandomKey mask_key(const kernels::RandomKey& masks_key, const DropoutSite& site) {
  return masks_key.fold(site.layer).fold(uint64_t(site.site));
}

namespace detail {

at::Tensor dropout(const at::Tensor& x, const Step& step, DropoutSite site, int64_t first_element,
                   OutputUse use) {
  if (step.dropout == 0) return x;
  const auto key = mask_key(step.key, site);
  const auto masked_by = [p = step.dropout, first_element](const kernels::RandomKey& random_key) {
    return [=](const at::Tensor& value) {
      return kernels::dropout(value.contiguous(), p, random_key, first_element);
    };
  };
  const parallel::LinearMap forward =
      use == OutputUse::discarded ? parallel::LinearMap(parallel::identity) : masked_by(key);
  return parallel::conjugate(x, forward, masked_by(key));
}

}  // namespace detail
}  // namespace shardwise::nn
