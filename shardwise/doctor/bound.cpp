#include "shardwise/doctor/bound.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardwise::doctor {

namespace {

/// Returns the largest absolute value; NaN if `x` has NaN or Inf.
double largest(const at::Tensor& x) {
  if (x.numel() == 0) return 0;
  const double value = x.abs().max().item<double>();
  return std::isfinite(value) ? value : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kDouble ? 0x1p-53 : dtype == at::kFloat ? 0x1p-24 : 0x1p-8;
}

Difference difference(const at::Tensor& a, const at::Tensor& b) {
  TORCH_INTERNAL_ASSERT(a.sizes() == b.sizes(), "shapes differ: ", a.sizes(), " and ", b.sizes());
  const at::Tensor reference = b.to(at::kDouble);
  return {largest(a.to(at::kDouble) - reference), largest(reference)};
}

double fp64_bound(double scale) {
  return kFp64Tolerance * scale;
}

double rounding_bound(double rounding, double scale, at::ScalarType dtype) {
  const double bound = kTail * std::max(rounding, unit_roundoff(dtype) * scale);
  return scale > 0 ? std::min(bound, kMaxRelativeBound * scale) : bound;
}

}  // namespace shardwise::doctor
