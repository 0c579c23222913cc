// The results of a trace, each gathered from the ranks to its full tensor, and the bound of their difference
// from the reference. A result beyond its bound is a bug; docs/adr/0015-doctor.md has the reasons.
//
// The reference is the unsharded model in fp64. A run in fp64 may differ from it by fp64 rounding, which is
// far below the effect of any communication bug. A run in another dtype may differ by a few times the
// rounding of the unsharded model in that dtype.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "shardwise/doctor/trace.h"

namespace shardwise::doctor {

/// The name of a result: "layer 3", "self_attn.qkv_proj.weight", gradient.
struct Label {
  std::string module;  // embedding, layer N, final norm, head, loss
  std::string tensor;  // a parameter's name within it, or "output", "attention output"
  bool is_gradient = false;

  /// "gradient of self_attn.qkv_proj.weight".
  std::string text() const { return is_gradient ? "gradient of " + tensor : tensor; }
  bool operator==(const Label&) const = default;
  auto operator<=>(const Label&) const = default;
};

struct Result {
  Label label;
  at::Tensor full;    // shaped as in the unsharded model, in the dtype of the shards, on the CPU
  int differing = 0;  // ranks whose bits differ from those of the first holder of an element
};
using Visit = std::function<void(const Result&)>;

/// Calls `visit` on every rank for each result: activations and the loss in forward order, then gradients in
/// backward order, each stage's output before its parameters. Collective. Frees each full tensor after its
/// visit. Cost: one all_gather or all_reduce per result.
void for_each_result(const model::DecoderWeights& weights, const Trace& trace, const RunConfig& run_config,
                     const Visit& visit);

/// An unsharded tensor, and the number of ranks whose shards have other bits.
struct GatheredTensor {
  at::Tensor tensor;
  int differing = 0;
};
/// Gathers `tensor`, the value or main gradient of `parameter`, without changing its bits. Collective.
GatheredTensor full_tensor(const parallel::Parameter& parameter, const at::Tensor& tensor,
                           const comm::Group& group);

/// Returns a parameter's module and its name within that module.
Label label_of(const std::string& parameter);

/// Returns half the distance from 1 to the next number of the dtype: 2^−53, 2^−24, 2^−8.
double unit_roundoff(at::ScalarType dtype);

/// Bound of a result in fp64, relative to its largest value. In docs/numerics.md sharding changed no result
/// by more than 5·10⁻¹⁴.
inline constexpr double kFp64Tolerance = 1e-10;

/// Allowed ratio of the sharded model's rounding to the unsharded model's (docs/numerics.md §4).
inline constexpr double kTail = 8;

/// Upper limit of a bound, relative to the reference's largest value.
inline constexpr double kMaxRelativeBound = 0.5;

struct Difference {
  double largest = 0;  // max |a − b|; NaN if a or b has NaN or Inf
  double scale = 0;    // max |b|
};
/// Returns the difference of `a` from the reference `b` of the same shape.
Difference difference(const at::Tensor& a, const at::Tensor& b);

/// Returns the bound of a result in fp64 whose reference is at most `scale`.
double fp64_bound(double scale);

/// Returns the bound of a result in `dtype`. `rounding` is the difference of the unsharded model in `dtype`;
/// the bound is proportional to it, or to the rounding of the largest value in `dtype` if that is larger
/// (`rounding` may be small by accident or because little is computed). It never exceeds kMaxRelativeBound of
/// `scale`, so a tensor of zeros always fails.
double rounding_bound(double rounding, double scale, at::ScalarType dtype);

}  // namespace shardwise::doctor
