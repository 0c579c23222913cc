// Arithmetic as random errors: what storing a tensor in a dtype, and adding up its terms in fp32, may have
// changed. docs/numerics.md §1–2. The reference computes with these in fp64, so that its results scatter as
// those of any program must that stores the same tensors.
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <memory>

namespace shardwise::testing {

/// Half the distance from 1 to the next number of the dtype: 2^−53, 2^−24, 2^−8.
double unit_roundoff(at::ScalarType dtype);

class Rounding {
 public:
  /// Exact: changes nothing.
  Rounding() = default;
  /// As if tensors were stored in `dtype`: fp64, fp32 or bf16.
  Rounding(at::ScalarType dtype, uint64_t seed);

  /// How many terms an element is a sum of, and an element of its gradient.
  struct Terms {
    int64_t value = 1, gradient = 1;
  };

  /// `x` as it is read back from memory; so is its gradient.
  at::Tensor stored(const at::Tensor& x, Terms terms) const;
  /// `x`, whose gradient is stored before that of other uses is added to it.
  at::Tensor branch(const at::Tensor& x, int64_t gradient_terms) const;
  /// `x` and its gradient kept in the dtype of sums: fp32, fp64 for fp64.
  at::Tensor kept(const at::Tensor& x, Terms terms) const;
  /// A weight, whose gradient is kept in the dtype of sums.
  at::Tensor weight(const at::Tensor& x, int64_t gradient_terms) const;

 private:
  /// Of an element: at most `storing` of itself, and a variance of adding²/3 of its row's mean square.
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
