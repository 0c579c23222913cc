// The conjugate collectives: autograd ops that change a tensor's placement over the tp group (placement.h).
// The placements before and after determine the forward collective and the backward collective.
//
//   op                  placement forward        backward       Megatron-LM's name
//   enter (f)           I → R     nothing        all_reduce     copy_to_tensor_model_parallel_region
//   leave (f*)          P → I     all_reduce     nothing        reduce_from_tensor_model_parallel_region
//   enter (g)           S<0> → R  all_gather     reduce_scatter gather_from_sequence_parallel_region
//   leave (g*)          P → S<0>  reduce_scatter all_gather     reduce_scatter_to_sequence_parallel_region
//   slice               I → S<-1> slice          all_gather     scatter_to_tensor_model_parallel_region
//   gather_to_invariant S<-1> → I all_gather     slice          gather_from_tensor_model_parallel_region
//
// Layers use the fused products (column_product.h, row_product.h), which contain f, f*, g and g*. The ops of
// this header stand alone, for teaching, tests and unusual models. They never modify their input, and in a
// group of one they do not communicate.
// Source: Shoeybi et al. 2019 (Megatron-LM) §3 for f and f*; Korthikanti et al. 2022 §4.2.2 for g and g*.
#pragma once
#include "shardwise/parallel/placement.h"
#include "shardwise/parallel/step.h"

namespace shardwise::parallel {

/// f, copy_to_tensor_model_parallel_region: passes the residual stream to a tensor-parallel region.
/// Shapes: `x` [s, b, h] I → [s, b, h] R.
/// Forward: nothing. Backward: all_reduce.
/// Cost: each rank sends 2·sbh(t−1)/t elements in backward.
Placed<Replicated> enter(const Placed<Invariant>& x, const Step& step);

/// g, gather_from_sequence_parallel_region: gathers the residual stream at the start of a tensor-parallel
/// region.
/// Shapes: `x_shard_s` [s/t, b, h] S<0> → [s, b, h] R.
/// Forward: all_gather. Backward: reduce_scatter.
/// Cost: each rank sends sbh(t−1)/t elements in forward and as many in backward.
Placed<Replicated> enter(const Placed<Sharded<kSequence>>& x_shard_s, const Step& step);

/// Sums the ranks' partial results at the end of a tensor-parallel region and returns the residual stream.
///
/// leave<Invariant> is f*, reduce_from_tensor_model_parallel_region.
/// Shapes: `x` [s, b, h] P → [s, b, h] I.
/// Forward: all_reduce. Backward: nothing.
///
/// leave<Sharded<kSequence>> is g*, reduce_scatter_to_sequence_parallel_region.
/// Shapes: `x` [s, b, h] P → [s/t, b, h] S<0>.
/// Forward: reduce_scatter. Backward: all_gather.
template <ResidualStream Stream>
Placed<Stream> leave(const Placed<Partial>& x, const Step& step);
template <>
Placed<Invariant> leave<Invariant>(const Placed<Partial>& x, const Step& step);
template <>
Placed<Sharded<kSequence>> leave<Sharded<kSequence>>(const Placed<Partial>& x, const Step& step);

/// The implementations of the templates below, on tensors without placements. Each name reads
/// forward_then_backward. `dim` may be negative.
namespace raw {
/// Forward: all_gather along `dim`. Backward: slice.
at::Tensor gather_then_slice(const at::Tensor& x, const base::Split& split, int64_t dim,
                             const comm::Group& group);
/// Forward: all_gather along `dim`. Backward: reduce_scatter.
at::Tensor gather_then_reduce(const at::Tensor& x, const base::Split& split, int64_t dim,
                              const comm::Group& group);
/// Forward: slice along `dim`. Backward: all_gather.
at::Tensor slice_then_gather(const at::Tensor& x, const base::Split& split, int64_t dim,
                             const comm::Group& group);
/// Forward: slice along `dim`. Backward: zero padding.
at::Tensor slice_then_pad(const at::Tensor& x, const base::Split& split, int64_t dim,
                          const comm::Group& group);
/// Forward: all_reduce. Backward: all_reduce.
at::Tensor reduce_then_reduce(const at::Tensor& x, const comm::Group& group);
/// Forward: all_to_all from shards along `from_dim` to shards along `to_dim`. Backward: the inverse.
at::Tensor exchange(const at::Tensor& x, const base::Split& from, int64_t from_dim, const base::Split& to,
                    int64_t to_dim, const comm::Group& group);
}  // namespace raw

/// Gathers `x` for computation that is the same on every rank, so that backward only slices
/// (gather_from_tensor_model_parallel_region). S<dim> → I. Forward: all_gather. Backward: slice.
template <int64_t dim>
Placed<Invariant> gather_to_invariant(const Placed<Sharded<dim>>& x, const base::Split& split,
                                      const comm::Group& group) {
  return Placed<Invariant>(raw::gather_then_slice(x.local(), split, dim, group));
}

/// Gathers `x` for computation that differs from rank to rank, so that backward sums the ranks' gradients.
/// S<dim> → R. Forward: all_gather. Backward: reduce_scatter.
template <int64_t dim>
Placed<Replicated> gather_to_replicated(const Placed<Sharded<dim>>& x, const base::Split& split,
                                        const comm::Group& group) {
  return Placed<Replicated>(raw::gather_then_reduce(x.local(), split, dim, group));
}

/// Returns this rank's slice of `x` (scatter_to_tensor_model_parallel_region).
/// I → S<dim>. Forward: slice. Backward: all_gather.
template <int64_t dim>
Placed<Sharded<dim>> slice(const Placed<Invariant>& x, const base::Split& split, const comm::Group& group) {
  return Placed<Sharded<dim>>(raw::slice_then_gather(x.local(), split, dim, group));
}

/// Returns this rank's slice of `x`. R → S<dim>. Forward: slice. Backward: zero padding (a Partial gradient).
template <int64_t dim>
Placed<Sharded<dim>> slice(const Placed<Replicated>& x, const base::Split& split, const comm::Group& group) {
  return Placed<Sharded<dim>>(raw::slice_then_pad(x.local(), split, dim, group));
}

/// Sums the ranks' partial results for computation that differs from rank to rank. P → R.
/// Forward: all_reduce. Backward: all_reduce.
inline Placed<Replicated> sum_to_replicated(const Placed<Partial>& x, const comm::Group& group) {
  return Placed<Replicated>(raw::reduce_then_reduce(x.local(), group));
}

/// Moves the sharding of `x` from one dimension to another. S<from_dim> → S<to_dim>.
/// Forward: all_to_all. Backward: the inverse all_to_all.
/// Errors: c10::ValueError if the ranks' shares of `from` or of `to` differ in size.
template <int64_t from_dim, int64_t to_dim>
Placed<Sharded<to_dim>> exchange(const Placed<Sharded<from_dim>>& x, const base::Split& from,
                                 const base::Split& to, const comm::Group& group) {
  return Placed<Sharded<to_dim>>(raw::exchange(x.local(), from, from_dim, to, to_dim, group));
}

}  // namespace shardwise::parallel
