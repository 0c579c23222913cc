#include "tests/support/tolerance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/norm.h>

#include <cstring>
#include <limits>

namespace shardwise::testing {

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  const at::Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  if (!at::isfinite(x).all().item<bool>()) return std::numeric_limits<double>::infinity();
  const double distance = (x - y).norm().item<double>(), scale = y.norm().item<double>();
  return scale == 0 ? x.norm().item<double>() : distance / scale;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  if (x.numel() == 0) return true;  // memcmp must not get a null pointer
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

}  // namespace shardwise::testing
