// What the kernels' tests share: the dtypes, their bounds, and derivatives by differences.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"

namespace shardwise::kernels {

using testing::random_tensor;
using testing::relative_error;
using testing::same_bits;

inline const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

/// Half the distance from 1 to the next number.
inline double roundoff(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 0x1p-53;
  if (dtype == at::kFloat) return 0x1p-24;
  return dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

/// Of a result computed in fp32 (fp64) with `operations` roundings in a row and rounded once to `dtype`.
inline double bound(at::ScalarType dtype, double operations) {
  const double computing = dtype == at::kDouble ? 0x1p-53 : 0x1p-24;
  return roundoff(dtype) + operations * computing;
}

inline at::Tensor wide(const at::Tensor& tensor) {
  return tensor.detach().to(at::kDouble);
}

/// A copy that records gradients.
inline at::Tensor leaf(const at::Tensor& tensor) {
  return wide(tensor).clone().requires_grad_(true);
}

/// d/dt of f(x + t·direction) at 0, by central differences; f in fp64.
inline double derivative(const std::function<double(const at::Tensor&)>& f, const at::Tensor& x,
                         const at::Tensor& direction) {
  constexpr double kStep = 1e-6;
  return (f(x + direction * kStep) - f(x - direction * kStep)) / (2 * kStep);
}

/// `gradient` is that of f at x: checked along a random direction, to the accuracy of differences.
inline void expect_gradient(const std::function<double(const at::Tensor&)>& f, const at::Tensor& x,
                            const at::Tensor& gradient) {
  const at::Tensor direction = random_tensor(x.sizes().vec(), /*seed=*/977);
  const double expected = derivative(f, x, direction);
  EXPECT_NEAR(testing::dot(gradient, direction), expected, 1e-7 * (1 + std::abs(expected)));
}

/// ATen's threads for a scope. Small cases are quicker with one: waiting threads spin, and others share the
/// cores.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace shardwise::kernels
