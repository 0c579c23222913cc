#include "shardwise/doctor/conjugate_collectives.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <functional>

#include "shardwise/comm/gather_values.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/parallel/collectives.h"

namespace shardwise::doctor {

using at::Tensor;
using base::Split;
using nn::Invariant;
using nn::kSequence;
using nn::Partial;
using nn::Placed;
using nn::Replicated;
using nn::Sharded;
using Tensors = std::vector<Tensor>;  // by rank

namespace {

/// Message size: columns, and rows beyond an even split over the ranks.
struct Size {
  int64_t width, extra_rows;
};

/// Messages [s, 2, h] of one dtype and size on every rank of a group.
class Values {
 public:
  Values(const comm::Group& group, at::ScalarType dtype, const Size& size)
      : step(group, int64_t{2} * group.size() + size.extra_rows), dtype_(dtype), width_(size.width) {}

  nn::Step step;

  int rank() const { return step.group.rank(); }
  const Split& split() const { return step.sequence; }

  /// Returns a different random value for every rank and every `number`.
  Tensors random(uint64_t number) const {
    Tensors all;
    for (int rank = 0; rank < step.group.size(); ++rank) {
      const std::vector<int64_t> shape{split().size(), 2, width_};
      Tensor value = at::empty(shape, at::TensorOptions(dtype_));
      kernels::fill_normal_(value, shape, /*dim=*/0, /*pieces=*/{}, kernels::RandomKey::of(number).fold(rank),
                            /*mean=*/0, /*std=*/1);
      all.push_back(value);
    }
    return all;
  }

  /// Returns the sum in rank order, rounded once.
  Tensor sum(const Tensors& all) const {
    Tensor total = all[0].to(kernels::accumulator_type(dtype_));
    for (size_t i = 1; i < all.size(); ++i) total = total + all[i];
    return total.to(dtype_);
  }
  Tensor slice(const Tensor& full, int rank) const {
    const base::Range range = split().range(rank);
    return full.narrow(kSequence, range.begin, range.size());
  }
  Tensor local_slice(const Tensor& full) const { return slice(full, rank()).contiguous(); }
  /// Returns the tensor whose slice r is rank r's slice of all[r].
  Tensor gathered(const Tensors& all) const {
    Tensor full = all[0].clone();
    for (int rank = 0; rank < step.group.size(); ++rank)
      slice(full, rank).copy_(slice(all[static_cast<size_t>(rank)], rank));
    return full;
  }

 private:
  at::ScalarType dtype_;
  int64_t width_;
};

/// One conjugate collective: input x, expected output y, output gradient dy, expected input gradient dx.
struct Conjugate {
  const char* name;
  std::function<Tensor(const Tensor& x, const Values&)> run;
  Tensor x, y, dy, dx;
};

/// Checks forward and backward, and that neither modifies its input.
bool passes(const Conjugate& conjugate, const Values& values) {
  const Tensor x = conjugate.x.detach().clone().requires_grad_();
  const Tensor y = conjugate.run(x, values);
  const bool is_forward = y.equal(conjugate.y) && x.equal(conjugate.x);
  const Tensor dy = conjugate.dy.clone();
  y.backward(dy);
  return is_forward && x.grad().equal(conjugate.dx) && dy.equal(conjugate.dy);
}

template <class P>
Placed<P> placed(const Tensor& x) {
  return Placed<P>(x);
}

/// Returns every conjugate collective of parallel/collectives.h.
std::vector<Conjugate> conjugates(const Values& v) {
  using SequenceSharded = Sharded<kSequence>;
  const Tensors x = v.random(1), d = v.random(2);
  const size_t rank = static_cast<size_t>(v.rank());
  const Tensor slice = v.local_slice(x[rank]), d_slice = v.local_slice(d[rank]);
  const Tensor sum = v.sum(x), d_sum = v.sum(d);
  // Values that are equal on every rank: rank 0's.
  const Tensor &same = x[0], &d_same = d[0];
  Tensor padded = same.new_zeros(same.sizes());
  v.slice(padded, v.rank()).copy_(d_slice);
  return {
      {"f", [](const Tensor& a, const Values& w) { return enter(placed<Invariant>(a), w.step).local(); },
       same, same, d[rank], d_sum},
      {"f*",
       [](const Tensor& a, const Values& w) {
         return parallel::leave<Invariant>(placed<Partial>(a), w.step).local();
       },
       x[rank], sum, d_same, d_same},
      {"g",
       [](const Tensor& a, const Values& w) { return enter(placed<SequenceSharded>(a), w.step).local(); },
       slice, v.gathered(x), d[rank], v.local_slice(d_sum)},
      {"g*",
       [](const Tensor& a, const Values& w) {
         return parallel::leave<SequenceSharded>(placed<Partial>(a), w.step).local();
       },
       x[rank], v.local_slice(sum), d_slice, v.gathered(d)},
      {"S to I",
       [](const Tensor& a, const Values& w) {
         return gather_to_invariant(placed<SequenceSharded>(a), w.split(), w.step.group).local();
       },
       slice, v.gathered(x), d_same, v.local_slice(d_same)},
      {"I to S",
       [](const Tensor& a, const Values& w) {
         return parallel::slice<kSequence>(placed<Invariant>(a), w.split(), w.step.group).local();
       },
       same, v.local_slice(same), d_slice, v.gathered(d)},
      {"R to S",
       [](const Tensor& a, const Values& w) {
         return parallel::slice<kSequence>(placed<Replicated>(a), w.split(), w.step.group).local();
       },
       same, v.local_slice(same), d_slice, padded},
      {"P to R",
       [](const Tensor& a, const Values& w) {
         return sum_to_replicated(placed<Partial>(a), w.step.group).local();
       },
       x[rank], sum, d[rank], d_sum},
  };
}

/// Checks all_reduce_ of a contiguous tensor, a transposed one, and one in the symmetric heap.
bool all_reduces(const Values& v) {
  const Tensors x = v.random(3);
  const Tensor sum = v.sum(x);
  Tensor dense = x[static_cast<size_t>(v.rank())].clone();
  Tensor strided = dense.transpose(0, 2).contiguous().transpose(0, 2);
  Tensor symmetric = v.step.group.empty(dense.sizes(), dense.scalar_type());
  symmetric.copy_(dense);
  for (Tensor* one : {&dense, &strided, &symmetric}) v.step.group.all_reduce_(*one);
  return dense.equal(sum) && strided.equal(sum) && symmetric.equal(sum);
}

/// Returns the index of this rank's first error, or -1. Calls all collectives even after an error.
int first_error(const Values& values) {
  int error = all_reduces(values) ? -1 : 0, number = 0;
  for (const Conjugate& conjugate : conjugates(values)) {
    ++number;
    if (!passes(conjugate, values) && error < 0) error = number;
  }
  return error;
}

std::string name_of(int error, const Values& values) {
  return error == 0 ? "all_reduce" : conjugates(values)[static_cast<size_t>(error - 1)].name;
}

/// Even shards, where another rank's shard has the same shape, and uneven ones; small and large messages,
/// which use different algorithms.
constexpr Size kSizes[] = {{3, 0}, {3, 1}, {701, 0}, {701, 1}};

}  // namespace

Check check_conjugate_collectives(const comm::Group& group) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const Size& size : kSizes) {
      const Values values(group, dtype, size);
      const auto errors = comm::gather_values(first_error(values), group);
      for (size_t rank = 0; rank < errors.size(); ++rank) {
        if (errors[rank] < 0) continue;
        return {"conjugate collectives", "", false,
                fmt::format("{} is wrong on rank {}, in {}", name_of(errors[rank], values), rank,
                            dtype_name(dtype))};
      }
    }
  }
  return {"conjugate collectives", "", true,
          "all_reduce, f, f*, g, g* and the others are bit-exact in fp64, fp32 and bf16"};
}

}  // namespace shardwise::doctor
