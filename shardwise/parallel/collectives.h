// The conjugate collectives: each changes a value's placement, and its backward is fixed by the types.
//
//   f   enter  I → R            nothing          | all_reduce
//   f*  leave  P → I            all_reduce       | nothing
//   g   enter  S<seq> → R       all_gather       | reduce_scatter
//   g*  leave  P → S<seq>       reduce_scatter   | all_gather
//
// Layers use the fused products (column_product.h, row_product.h), which contain these; the free forms are
// for teaching, tests and unusual models. None modifies its input. A group of one communicates nothing.
// Source: Megatron-LM (Shoeybi et al. 2019) §3 for f, f*; Korthikanti et al. 2022 §4.2.2 for g, g*.
#pragma once
#include "shardwise/parallel/placement.h"
#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// f: the residual stream enters a parallel region.
/// Shapes: `x` [s, b, h] I → [s, b, h] R. Backward: all_reduce. Cost: 2·sbh(t−1)/t elements in backward.
Placed<Replicated> enter(const Placed<Invariant>& x, const Step& step);

/// g: the sequence-sharded stream enters a parallel region.
/// Shapes: `x_shard_s` [s/t, b, h] S<0> → [s, b, h] R. Forward: all_gather. Backward: reduce_scatter.
Placed<Replicated> enter(const Placed<Sharded<kSequence>>& x_shard_s, const Step& step);

/// f* (to Invariant) or g* (to Sharded<kSequence>): a parallel region's sum returns to the residual stream.
/// Shapes: `x` [s, b, h] P → [s, b, h] I, or [s/t, b, h] S<0>.
template <ResidualStream Stream>
Placed<Stream> leave(const Placed<Partial>& x, const Step& step);
template <>
Placed<Invariant> leave<Invariant>(const Placed<Partial>& x, const Step& step);
template <>
Placed<Sharded<kSequence>> leave<Sharded<kSequence>>(const Placed<Partial>& x, const Step& step);

// Raw forms of the others; the typed templates below only put types on them. `dim` may be negative.
namespace raw {
at::Tensor gather_then_slice(const at::Tensor& x, const base::Split& split, int64_t dim,
                             const comm::Group& group);
at::Tensor gather_then_reduce(const at::Tensor& x, const base::Split& split, int64_t dim,
                              const comm::Group& group);
at::Tensor slice_then_gather(const at::Tensor& x, const base::Split& split, int64_t dim,
                             const comm::Group& group);
at::Tensor slice_then_pad(const at::Tensor& x, const base::Split& split, int64_t dim,
                          const comm::Group& group);
at::Tensor reduce_then_reduce(const at::Tensor& x, const comm::Group& group);
at::Tensor exchange(const at::Tensor& x, const base::Split& from, int64_t from_dim, const base::Split& to,
                    int64_t to_dim, const comm::Group& group);
}  // namespace raw

/// Gathers for the same work on every rank. S<dim> → I. Forward: all_gather. Backward: slice.
template <int64_t dim>
Placed<Invariant> gather_to_invariant(const Placed<Sharded<dim>>& x, const base::Split& split,
                                      const comm::Group& group) {
  return Placed<Invariant>(raw::gather_then_slice(x.local(), split, dim, group));
}

/// Gathers for different work on each rank. S<dim> → R. Forward: all_gather. Backward: reduce_scatter.
template <int64_t dim>
Placed<Replicated> gather_to_replicated(const Placed<Sharded<dim>>& x, const base::Split& split,
                                        const comm::Group& group) {
  return Placed<Replicated>(raw::gather_then_reduce(x.local(), split, dim, group));
}

/// I → S<dim>. Forward: slice. Backward: all_gather.
template <int64_t dim>
Placed<Sharded<dim>> slice(const Placed<Invariant>& x, const base::Split& split, const comm::Group& group) {
  return Placed<Sharded<dim>>(raw::slice_then_gather(x.local(), split, dim, group));
}

/// R → S<dim>. Forward: slice. Backward: zero-padded, a Partial.
template <int64_t dim>
Placed<Sharded<dim>> slice(const Placed<Replicated>& x, const base::Split& split, const comm::Group& group) {
  return Placed<Sharded<dim>>(raw::slice_then_pad(x.local(), split, dim, group));
}

/// P → R. Forward and backward: all_reduce.
inline Placed<Replicated> sum_to_replicated(const Placed<Partial>& x, const comm::Group& group) {
  return Placed<Replicated>(raw::reduce_then_reduce(x.local(), group));
}

/// S<from> → S<to>. Forward: all_to_all. Backward: the inverse. Both splits even over the ranks.
template <int64_t from_dim, int64_t to_dim>
Placed<Sharded<to_dim>> exchange(const Placed<Sharded<from_dim>>& x, const base::Split& from,
                                 const base::Split& to, const comm::Group& group) {
  return Placed<Sharded<to_dim>>(raw::exchange(x.local(), from, from_dim, to, to_dim, group));
}

}  // namespace shardwise::parallel
