// How far a result may be from the truth before it is a bug: docs/adr/0015-doctor.md says why.
//
// The truth is the unsharded model in fp64. A pass in fp64 must be as near to it as fp64's own rounding
// allows, which no fault of a crossing ever is; a pass in the run's dtype as near as a few times what the
// unsharded model in that dtype is off.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::doctor {

/// Half the distance from 1 to the next number of the dtype: 2^−53, 2^−24, 2^−8.
double unit_roundoff(at::ScalarType dtype);

/// Of a result in fp64, relative to its largest value. docs/numerics.md: sharding moved none by more than
/// 5·10⁻¹⁴.
inline constexpr double kExactly = 1e-10;

/// How many times what rounding does to the unsharded model it may do to the sharded one (docs/numerics.md
/// §4).
inline constexpr double kTail = 8;

/// Of the truth's largest value: the most that is ever called rounding.
inline constexpr double kMostShare = 0.5;

struct Difference {
  double largest = 0;  // max |a − b|; not a number when one of the two holds one that is not finite
  double scale = 0;    // max |b|
};
/// `b` is the truth; both of one shape.
Difference difference(const at::Tensor& a, const at::Tensor& b);

/// The bound of a result in fp64 whose truth is at most `scale`.
double exact_bound(double scale);

/// The bound of one in `dtype`: `rounding` is how far the unsharded model in `dtype` is off. Where that is
/// less than storing the largest value in `dtype` can change it, by accident or because little is computed,
/// it is this. Never more than kMostShare of `scale`: a pass whose rounding hides a tensor of zeros is not
/// judged right.
double rounding_bound(double rounding, double scale, at::ScalarType dtype);

}  // namespace shardwise::doctor
