// Where a value lives is part of its type: the four placements over the tp group.
//
// The placement of a value fixes that of its gradient, and with it every collective's backward. Only
// parallel/collectives.h and the fused products change a placement. (Vocabulary: meta-pytorch/spmd_types.)
#pragma once
#include <ATen/core/Tensor.h>

#include <concepts>
#include <utility>

namespace shardwise::parallel {

inline constexpr int64_t kSequence = 0;  // of [s, b, h]
inline constexpr int64_t kFeature = -1;

/// I: the same value on every rank, used for the same work.
struct Invariant {};
/// R: the same value on every rank, used for different work on each.
struct Replicated {};
/// S: each rank holds its slice along `dim`.
template <int64_t dim>
struct Sharded {};
/// P: each rank holds a term; the whole is the sum over ranks.
struct Partial {};

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

/// The residual stream's placement is the choice between TP and TP+SP.
template <class P>
concept ResidualStream = std::same_as<P, Invariant> || std::same_as<P, Sharded<kSequence>>;

/// The same value on every rank.
template <class P>
concept Whole = std::same_as<P, Invariant> || std::same_as<P, Replicated>;

/// The placement of a value's gradient.
template <Placement P>
struct GradientOf {
  using type = P;  // I and S are their own
};
template <>
struct GradientOf<Replicated> {
  using type = Partial;
};
template <>
struct GradientOf<Partial> {
  using type = Replicated;
};

/// One local tensor whose type says what the other ranks hold.
template <Placement P>
class Placed {
 public:
  explicit Placed(at::Tensor local) : local_(std::move(local)) {}
  /// What this rank holds. For kernels: the placement is lost.
  const at::Tensor& local() const { return local_; }

 private:
  at::Tensor local_;
};

namespace detail {
at::Tensor sum(const at::Tensor& a, const at::Tensor& b);
}

/// Sums are linear, so both terms keep any placement; terms of different placements do not compile.
template <Placement P>
Placed<P> operator+(const Placed<P>& a, const Placed<P>& b) {
  return Placed<P>(detail::sum(a.local(), b.local()));
}

}  // namespace shardwise::parallel
