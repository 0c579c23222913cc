#include "shardwise/parallel/weight_product.h"

#include "shardwise/base/profile.h"
#include "shardwise/kernels/product.h"
#include "shardwise/quant/product.h"

namespace shardwise::parallel {

void weight_product_out(at::Tensor& y, const at::Tensor& x, const Parameter& weight) {
  base::enter_part(weight.name);
  if (weight.panels) return quant::product_out(y, x, *weight.panels);
  kernels::product_out(y, x, weight.value.detach().t());
}

std::string product_name(const at::Tensor& x, const Parameter& weight) {
  if (weight.panels) return quant::product_name(x, *weight.panels);
  return kernels::product_name(x, weight.value.detach().t());
}

int64_t rows_with_equal_bits(at::ScalarType dtype, const Parameter& weight) {
  return weight.panels ? quant::rows_with_equal_bits(dtype, *weight.panels)
                       : kernels::rows_with_equal_bits(dtype);
}

void check_trainable(const Parameter& weight) {
  TORCH_CHECK_VALUE(!weight.panels, weight.name,
                    ": packed weights cannot be trained; got a product with gradients recorded; use "
                    "at::NoGradGuard [SW0458]");
}

}  // namespace shardwise::parallel
