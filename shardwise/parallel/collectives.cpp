#include "shardwise/parallel/collectives.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "shardwise/parallel/conjugate.h"
#include "shardwise/parallel/verify.h"

namespace shardwise::parallel {

using at::Tensor;
using base::Split;
using comm::Group;

namespace {

Tensor local_slice(const Tensor& x, const Split& split, int64_t dim, const Group& group) {
  const base::Range local = split.range(group.rank());
  return x.narrow(dim, local.begin, local.size()).contiguous();
}

Tensor zero_padded(const Tensor& local, const Split& split, int64_t dim, const Group& group) {
  std::vector<int64_t> shape = local.sizes().vec();
  shape[dim < 0 ? dim + local.dim() : dim] = split.size();
  Tensor full = at::zeros(shape, local.options());
  const base::Range range = split.range(group.rank());
  full.narrow(dim, range.begin, range.size()).copy_(local);
  return full;
}

Tensor exchanged(const Tensor& x, int64_t from_dim, int64_t to_dim, const Group& group) {
  if (group.size() == 1) return x;
  const Tensor blocks = at::stack(x.chunk(group.size(), to_dim), 0);  // block j goes to rank j
  const Tensor received = group.all_to_all(blocks);
  return at::cat(received.unbind(0), from_dim);
}

}  // namespace

Placed<Replicated> enter(const Placed<Invariant>& x, const Step& step) {
  verify_equal(x.local(), "the input of a tensor-parallel region", step);
  return Placed<Replicated>(conjugate(
      x.local(), identity, [group = step.group](const Tensor& dy) { return group.all_reduce(dy); }));
}

Placed<Replicated> enter(const Placed<Sharded<kSequence>>& x_shard_s, const Step& step) {
  Placed<Replicated> x = gather_to_replicated(x_shard_s, step.sequence, step.group);
  verify_equal(x.local(), "the gathered input of a tensor-parallel region", step);
  return x;
}

template <>
Placed<Invariant> leave<Invariant>(const Placed<Partial>& x, const Step& step) {
  return Placed<Invariant>(conjugate(
      x.local(), [group = step.group](const Tensor& y) { return group.all_reduce(y); },
      [step](const Tensor& dy) {
        verify_equal(dy, "the output gradient of a tensor-parallel region", step);
        return dy;
      }));
}

template <>
Placed<Sharded<kSequence>> leave<Sharded<kSequence>>(const Placed<Partial>& x, const Step& step) {
  return Placed<Sharded<kSequence>>(conjugate(
      x.local(),
      [group = step.group, split = step.sequence](const Tensor& y) {
        return group.reduce_scatter(y, split, kSequence);
      },
      [step](const Tensor& dy) {
        Tensor full = step.group.all_gather(dy, step.sequence, kSequence);
        verify_equal(full, "the gathered output gradient of a tensor-parallel region", step);
        return full;
      }));
}

namespace raw {

Tensor gather_then_slice(const Tensor& x, const Split& split, int64_t dim, const Group& group) {
  return conjugate(
      x, [=](const Tensor& shard) { return group.all_gather(shard, split, dim); },
      [=](const Tensor& dy) { return local_slice(dy, split, dim, group); });
}

Tensor gather_then_reduce(const Tensor& x, const Split& split, int64_t dim, const Group& group) {
  return conjugate(
      x, [=](const Tensor& shard) { return group.all_gather(shard, split, dim); },
      [=](const Tensor& dy) { return group.reduce_scatter(dy, split, dim); });
}

Tensor slice_then_gather(const Tensor& x, const Split& split, int64_t dim, const Group& group) {
  return conjugate(
      x, [=](const Tensor& full) { return local_slice(full, split, dim, group); },
      [=](const Tensor& dy) { return group.all_gather(dy, split, dim); });
}

Tensor slice_then_pad(const Tensor& x, const Split& split, int64_t dim, const Group& group) {
  return conjugate(
      x, [=](const Tensor& full) { return local_slice(full, split, dim, group); },
      [=](const Tensor& dy) { return zero_padded(dy, split, dim, group); });
}

Tensor reduce_then_reduce(const Tensor& x, const Group& group) {
  return conjugate(
      x, [=](const Tensor& y) { return group.all_reduce(y); },
      [=](const Tensor& dy) { return group.all_reduce(dy); });
}

Tensor exchange(const Tensor& x, const Split& from, int64_t from_dim, const Split& to, int64_t to_dim,
                const Group& group) {
  TORCH_CHECK_VALUE(from.is_uniform() && to.is_uniform(), "exchange: both splits must be even; got ",
                    from.name(), " of ", from.size(), " and ", to.name(), " of ", to.size(), " over ",
                    group.size(), " ranks [SW0451]");
  return conjugate(
      x, [=](const Tensor& y) { return exchanged(y, from_dim, to_dim, group); },
      [=](const Tensor& dy) { return exchanged(dy, to_dim, from_dim, group); });
}

}  // namespace raw
}  // namespace shardwise::parallel
