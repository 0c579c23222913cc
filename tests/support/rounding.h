// Random errors that model the rounding of storing a tensor in a dtype and of summing in fp32
// (docs/numerics.md §1–2). The reference applies them in fp64, so that its results scatter like those of any
// program that stores the same tensors.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <memory>

namespace shardwise::testing {

/// Returns the unit roundoff, half the distance from 1 to the next number: 2^−53, 2^−24, 2^−8.
double unit_roundoff(at::ScalarType dtype);

class Rounding {
 public:
  /// Creates an exact rounding, which changes nothing.
  Rounding() = default;
  /// Models tensors stored in `dtype`: fp64, fp32 or bf16.
  Rounding(at::ScalarType dtype, uint64_t seed);

  /// The number of terms in the sums of an element and of its gradient.
  struct Terms {
    int64_t value = 1, gradient = 1;
  };

  /// Rounds `x`, and its gradient, as if stored in the dtype.
  at::Tensor stored(const at::Tensor& x, Terms terms) const;
  /// Returns `x`; its gradient is rounded before the gradients of other uses are added.
  at::Tensor branch(const at::Tensor& x, int64_t gradient_terms) const;
  /// Rounds `x`, and its gradient, as if stored in the accumulation dtype: fp32, fp64 for fp64.
  at::Tensor kept(const at::Tensor& x, Terms terms) const;
  /// Returns a weight whose gradient is rounded as if stored in the accumulation dtype.
  at::Tensor weight(const at::Tensor& x, int64_t gradient_terms) const;

 private:
  /// An element's error: at most `storing` relative to itself, and a variance of adding²/3 relative to its
  /// row's mean square.
  struct Error {
    double storing = 0, adding = 0;
  };
  struct Disturb;
  Error error(double unit, int64_t terms) const;
  at::Tensor disturbed(const at::Tensor& x, Error value, Error gradient) const;

  double unit_ = 0, sum_unit_ = 0;
  std::shared_ptr<at::Generator> random_;
};

}  // namespace shardwise::testing
