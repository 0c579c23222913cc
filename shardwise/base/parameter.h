// The properties of a parameter that do not need its tensor: initial values, and how it is used.
#pragma once
#include <cmath>
#include <cstdint>

namespace shardwise::base {

/// The distribution of a parameter's initial values. Each rank draws its slice of the full tensor's values,
/// so they are equal at every tp size.
struct Init {
  /// Normal with mean 0, uniform around 0, or one value.
  enum class Kind { normal, uniform, constant };
  Kind kind = Kind::normal;  // the shape of the distribution
  double scale = 0.02;       // the standard deviation, the bound of (−bound, bound), or the constant
  /// Compares the distributions.
  bool operator==(const Init&) const = default;

  /// Returns a normal distribution with mean 0.
  static Init normal(double std) { return {Kind::normal, std}; }
  /// Kaiming uniform with a = sqrt 5, like torch.nn.Linear: bound 1/sqrt(fan_in) of the full weight.
  static Init kaiming_uniform(int64_t fan_in) {
    return {Kind::uniform, 1.0 / std::sqrt(static_cast<double>(fan_in))};
  }
  /// Returns the distribution whose values all equal `value`.
  static Init constant(double value) { return {Kind::constant, value}; }
};

/// How a parameter is used. Together with the residual stream's placement it determines how the ranks reduce
/// its gradient.
enum class ParameterUse {
  sharded,      // sharded over tp: column and row weights, column bias, embedding, head
  on_residual,  // unsharded, applied to the residual stream: norm weights, row bias, learned positions
  per_head,     // unsharded, applied to each rank's local heads: q/k-norm weights
};

}  // namespace shardwise::base
