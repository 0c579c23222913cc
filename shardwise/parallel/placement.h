// The four placements of a tensor over the tp group, as part of its C++ type.
//
// A tensor's placement determines its gradient's placement, and so every collective's backward. Only the ops
// of parallel/collectives.h and the fused products change a placement. (Vocabulary: meta-pytorch/spmd_types.)
#pragma once
#include <ATen/core/Tensor.h>

#include <concepts>
#include <utility>

namespace shardwise::parallel {

/// The dim of the sequence in [s, b, h].
inline constexpr int64_t kSequence = 0;
/// The dim of the features, the last one.
inline constexpr int64_t kFeature = -1;

/// I: equal on every rank, and used for the same computation on every rank.
struct Invariant {};
/// R: equal on every rank, and used for a different computation on each rank, so each has a partial gradient.
struct Replicated {};
/// S: each rank holds its shard of the tensor along `dim`.
template <int64_t dim>
struct Sharded {};
/// P: each rank holds a partial sum; the tensor is the sum over the ranks.
struct Partial {};

/// True for the four placements.
template <class P>
inline constexpr bool is_placement = false;
template <>
inline constexpr bool is_placement<Invariant> = true;
template <>
inline constexpr bool is_placement<Replicated> = true;
template <>
inline constexpr bool is_placement<Partial> = true;
template <int64_t dim>
inline constexpr bool is_placement<Sharded<dim>> = true;

template <class P>
concept Placement = is_placement<P>;

/// A placement of the residual stream: Invariant under TP, Sharded<kSequence> under TP+SP.
template <class P>
concept ResidualStream = std::same_as<P, Invariant> || std::same_as<P, Sharded<kSequence>>;

/// A placement in which every rank holds the full tensor.
template <class P>
concept Unsharded = std::same_as<P, Invariant> || std::same_as<P, Replicated>;

/// The placement of the gradient of a tensor placed P: I–I, S–S, R–P, P–R.
template <Placement P>
struct GradientOf {
  using type = P;  // the placement of the gradient
};
template <>
struct GradientOf<Replicated> {
  using type = Partial;
};
template <>
struct GradientOf<Partial> {
  using type = Replicated;
};

/// This rank's local tensor, whose type states what the other ranks hold.
template <Placement P>
class Placed {
 public:
  /// Declares that `local` is this rank's part of a tensor placed P. Not checked, except by Step::verify.
  explicit Placed(at::Tensor local) : local_(std::move(local)) {}
  /// Returns this rank's tensor without its placement, for kernels.
  const at::Tensor& local() const { return local_; }

 private:
  at::Tensor local_;
};

namespace detail {
at::Tensor sum(const at::Tensor& a, const at::Tensor& b);
}

/// Adds two tensors of the same placement, which the sum keeps. Different placements do not compile.
template <Placement P>
Placed<P> operator+(const Placed<P>& a, const Placed<P>& b) {
  return Placed<P>(detail::sum(a.local(), b.local()));
}

}  // namespace shardwise::parallel
