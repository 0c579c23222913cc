// Shared by the kernels' tests: dtypes, error bounds, and derivatives by finite differences.
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

/// Returns the unit roundoff: half the distance from 1 to the next number.
inline double roundoff(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 0x1p-53;
  if (dtype == at::kFloat) return 0x1p-24;
  return dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

/// Returns the error bound of a result computed in fp32 (fp64) with `operations` successive roundings and
/// then rounded to `dtype`.
inline double bound(at::ScalarType dtype, double operations) {
  const double computing = dtype == at::kDouble ? 0x1p-53 : 0x1p-24;
  return roundoff(dtype) + operations * computing;
}

inline at::Tensor wide(const at::Tensor& tensor) {
  return tensor.detach().to(at::kDouble);
}

/// Returns an fp64 copy that requires grad.
inline at::Tensor leaf(const at::Tensor& tensor) {
  return wide(tensor).clone().requires_grad_(true);
}

/// Returns d/dt of f(x + t·direction) at 0 by central differences; f computes in fp64.
inline double derivative(const std::function<double(const at::Tensor&)>& f, const at::Tensor& x,
                         const at::Tensor& direction) {
  constexpr double kStep = 1e-6;
  return (f(x + direction * kStep) - f(x - direction * kStep)) / (2 * kStep);
}

/// Checks that `gradient` is the gradient of f at x, along a random direction, to the accuracy of finite
/// differences.
inline void expect_gradient(const std::function<double(const at::Tensor&)>& f, const at::Tensor& x,
                            const at::Tensor& gradient) {
  const at::Tensor direction = random_tensor(x.sizes().vec(), /*seed=*/977);
  const double expected = derivative(f, x, direction);
  EXPECT_NEAR(testing::dot(gradient, direction), expected, 1e-7 * (1 + std::abs(expected)));
}

/// Sets ATen's number of threads for a scope. Small cases are faster with one thread: waiting threads spin,
/// and other processes share the cores.
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
