#include "shardwise/doctor/crossings.h"

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

/// Of messages: columns, and rows of the first rank beyond those of the last.
struct Size {
  int64_t width, rest;
};

/// One dtype and size of messages, [s, 2, h], on every rank of a group.
class Values {
 public:
  Values(const comm::Group& group, at::ScalarType dtype, const Size& size)
      : step(group, int64_t{2} * group.size() + size.rest), dtype_(dtype), width_(size.width) {}

  nn::Step step;

  int rank() const { return step.group.rank(); }
  const Split& split() const { return step.sequence; }

  /// A value of every rank's own; other ones for every `number`.
  Tensors drawn(uint64_t number) const {
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

  /// In rank order, rounded once.
  Tensor sum(const Tensors& all) const {
    Tensor total = all[0].to(kernels::accumulator_type(dtype_));
    for (size_t i = 1; i < all.size(); ++i) total = total + all[i];
    return total.to(dtype_);
  }
  Tensor slice(const Tensor& whole, int rank) const {
    const base::Range range = split().range(rank);
    return whole.narrow(kSequence, range.begin, range.size());
  }
  Tensor own_slice(const Tensor& whole) const { return slice(whole, rank()).contiguous(); }
  /// Of a value sliced differently on each rank: rank r's slice of all[r].
  Tensor gathered(const Tensors& all) const {
    Tensor whole = all[0].clone();
    for (int rank = 0; rank < step.group.size(); ++rank)
      slice(whole, rank).copy_(slice(all[static_cast<size_t>(rank)], rank));
    return whole;
  }

 private:
  at::ScalarType dtype_;
  int64_t width_;
};

/// A crossing: what goes in, what must come out, what comes back, and what must come out of that.
struct Crossing {
  const char* name;
  std::function<Tensor(const Tensor& x, const Values&)> run;
  Tensor x, y, dy, dx;
};

/// Forward, backward, and the input left alone.
bool holds(const Crossing& crossing, const Values& values) {
  const Tensor x = crossing.x.detach().clone().requires_grad_();
  // Not the leaf itself, which autograd would not let be written to unnoticed.
  const Tensor y = crossing.run(x, values);
  const bool is_forward = y.equal(crossing.y) && x.equal(crossing.x);
  const Tensor dy = crossing.dy.clone();
  y.backward(dy);
  return is_forward && x.grad().equal(crossing.dx) && dy.equal(crossing.dy);
}

template <class P>
Placed<P> placed(const Tensor& x) {
  return Placed<P>(x);
}

/// parallel/collectives.h, line by line.
std::vector<Crossing> crossings(const Values& v) {
  using Stream = Sharded<kSequence>;
  const Tensors x = v.drawn(1), d = v.drawn(2);
  const size_t own = static_cast<size_t>(v.rank());
  const Tensor slice = v.own_slice(x[own]), d_slice = v.own_slice(d[own]);
  const Tensor sum = v.sum(x), d_sum = v.sum(d);
  // Values that are the same on every rank: rank 0's.
  const Tensor &same = x[0], &d_same = d[0];
  Tensor padded = same.new_zeros(same.sizes());
  v.slice(padded, v.rank()).copy_(d_slice);
  return {
      {"f", [](const Tensor& a, const Values& w) { return enter(placed<Invariant>(a), w.step).local(); },
       same, same, d[own], d_sum},
      {"f*",
       [](const Tensor& a, const Values& w) {
         return parallel::leave<Invariant>(placed<Partial>(a), w.step).local();
       },
       x[own], sum, d_same, d_same},
      {"g", [](const Tensor& a, const Values& w) { return enter(placed<Stream>(a), w.step).local(); }, slice,
       v.gathered(x), d[own], v.own_slice(d_sum)},
      {"g*",
       [](const Tensor& a, const Values& w) {
         return parallel::leave<Stream>(placed<Partial>(a), w.step).local();
       },
       x[own], v.own_slice(sum), d_slice, v.gathered(d)},
      {"S to I",
       [](const Tensor& a, const Values& w) {
         return gather_to_invariant(placed<Stream>(a), w.split(), w.step.group).local();
       },
       slice, v.gathered(x), d_same, v.own_slice(d_same)},
      {"I to S",
       [](const Tensor& a, const Values& w) {
         return parallel::slice<kSequence>(placed<Invariant>(a), w.split(), w.step.group).local();
       },
       same, v.own_slice(same), d_slice, v.gathered(d)},
      {"R to S",
       [](const Tensor& a, const Values& w) {
         return parallel::slice<kSequence>(placed<Replicated>(a), w.split(), w.step.group).local();
       },
       same, v.own_slice(same), d_slice, padded},
      {"P to R",
       [](const Tensor& a, const Values& w) {
         return sum_to_replicated(placed<Partial>(a), w.step.group).local();
       },
       x[own], sum, d[own], d_sum},
  };
}

/// The sum in place, of a tensor that lies as it is and of one that is transposed in memory.
bool sums_in_place(const Values& v) {
  const Tensors x = v.drawn(3);
  const Tensor sum = v.sum(x);
  Tensor dense = x[static_cast<size_t>(v.rank())].clone();
  Tensor strided = dense.transpose(0, 2).contiguous().transpose(0, 2);
  Tensor shared = v.step.group.empty(dense.sizes(), dense.scalar_type());
  shared.copy_(dense);
  for (Tensor* one : {&dense, &strided, &shared}) v.step.group.all_reduce_(*one);
  return dense.equal(sum) && strided.equal(sum) && shared.equal(sum);
}

/// What is wrong on this rank, of one dtype and width; -1: nothing. All collectives happen whatever is found.
int first_wrong(const Values& values) {
  int wrong = sums_in_place(values) ? -1 : 0, number = 0;
  for (const Crossing& crossing : crossings(values)) {
    ++number;
    if (!holds(crossing, values) && wrong < 0) wrong = number;
  }
  return wrong;
}

std::string name_of(int wrong, const Values& values) {
  return wrong == 0 ? "all_reduce" : crossings(values)[static_cast<size_t>(wrong - 1)].name;
}

/// Even shards, where another rank's fits as well, and uneven ones; small messages take another way than
/// large ones.
constexpr Size kSizes[] = {{3, 0}, {3, 1}, {701, 0}, {701, 1}};

}  // namespace

Audit audit_crossings(const comm::Group& group) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const Size& size : kSizes) {
      const Values values(group, dtype, size);
      const auto wrong = comm::gather_values(first_wrong(values), group);
      for (size_t rank = 0; rank < wrong.size(); ++rank) {
        if (wrong[rank] < 0) continue;
        return {"crossings", "", false,
                fmt::format("{} is wrong on rank {}, in {}", name_of(wrong[rank], values), rank,
                            dtype_name(dtype))};
      }
    }
  }
  return {"crossings", "", true, "f, f*, g, g* and the others, in fp64, fp32 and bf16, bit for bit"};
}

}  // namespace shardwise::doctor
