#include "shardwise/doctor/group_checks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <set>

#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/mesh.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/nn/dropout.h"
#include "shardwise/parallel/collectives.h"

namespace shardwise::doctor {

using at::Tensor;
using base::Split;
using nn::DropoutSite;
using nn::Invariant;
using nn::kSequence;
using nn::Partial;
using nn::Placed;
using nn::Replicated;
using nn::Sharded;
using Tensors = std::vector<Tensor>;  // by rank

namespace {

// The conjugate collectives, with small values that every rank can compute for all ranks.

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
struct ConjugateCase {
  const char* name;
  std::function<Tensor(const Tensor& x, const Values&)> run;
  Tensor x, y, dy, dx;
};

/// Checks forward and backward, and that neither modifies its input.
bool passes(const ConjugateCase& conjugate, const Values& values) {
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
std::vector<ConjugateCase> conjugates(const Values& v) {
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
  for (const ConjugateCase& conjugate : conjugates(values)) {
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

// The axes of a mesh.

/// An axis of a mesh and the expected ranks of its group.
struct AxisCase {
  std::vector<comm::Mesh::Axis> axes;
  std::string axis;
  std::vector<int> ranks;

  std::string name() const {
    return fmt::format("{} of {}={} x {}={}", axis, axes[0].name, axes[0].size, axes[1].name, axes[1].size);
  }
};

/// Returns both orders of the axes.
std::vector<AxisCase> axis_cases(const comm::Group& group) {
  const comm::Mesh::Axis dp{"dp", 1}, tp{"tp", group.size()};
  std::vector<int> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int> self = {group.rank()};
  return {{{dp, tp}, "tp", all}, {{dp, tp}, "dp", self}, {{tp, dp}, "tp", all}, {{tp, dp}, "dp", self}};
}

/// Checks the ranks of the axis and this rank's coordinate.
bool passes(const AxisCase& axis_case, const comm::Group& group) {
  const auto connect = [&](const std::string&, const std::vector<int>& ranks) {
    return ranks.size() == 1 ? comm::Group() : group;
  };
  const comm::Mesh mesh(axis_case.axes, group.rank(), group.size(), connect);
  const comm::Group made = mesh.group(axis_case.axis);
  return mesh.ranks(axis_case.axis) == axis_case.ranks && mesh.size(axis_case.axis) == made.size() &&
         mesh.coordinate(axis_case.axis) == made.rank();
}

/// Returns the index of the first case that fails, or −1.
int first_error(const std::vector<AxisCase>& cases, const comm::Group& group) {
  for (size_t i = 0; i < cases.size(); ++i)
    if (!passes(cases[i], group)) return static_cast<int>(i);
  return -1;
}

// Dropout masks.

std::vector<DropoutSite> residual_places(int64_t layers) {
  std::vector<DropoutSite> places{{-1, DropoutSite::Site::embedding}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    places.push_back({layer, DropoutSite::Site::attention_output});
    places.push_back({layer, DropoutSite::Site::mlp_output});
  }
  return places;
}

std::string name_of(const DropoutSite& place) {
  if (place.site == DropoutSite::Site::embedding) return "the embedding";
  const char* site = place.site == DropoutSite::Site::attention_output ? "attention" : "MLP";
  return fmt::format("layer {}'s {}", place.layer, site);
}

/// Returns `rows` of ones on the residual stream after dropout.
template <nn::ResidualStream Residual>
Tensor mask(const nn::Step& step, const DropoutSite& place, int64_t rows, const Tensor& like) {
  const Tensor ones = at::ones({rows, like.size(1), like.size(2)}, like.options());
  return nn::dropout(nn::Placed<Residual>(ones), step, place).local();
}

bool matches_unsharded(const TestCase& test_case, const RunConfig& run_config, const comm::Group& group,
                       const DropoutSite& place, const Tensor& like) {
  const nn::Step step = make_step(test_case, run_config, group),
                 unsharded = make_step(test_case, run_config, comm::Group());
  const Tensor full = mask<nn::Invariant>(unsharded, place, like.size(0), like);
  if (run_config.parallelism == plan::Parallelism::tp)
    return mask<nn::Invariant>(step, place, like.size(0), like).equal(full);
  const base::Range local = step.local_sequence();
  return mask<nn::Sharded<nn::kSequence>>(step, place, local.size(), like)
      .equal(full.narrow(nn::kSequence, local.begin, local.size()));
}

/// Returns true if two places share a key, over two steps of two micro-batches each.
bool has_shared_key(int64_t layers) {
  std::vector<DropoutSite> places = residual_places(layers);
  for (int64_t layer = 0; layer < layers; ++layer)
    places.push_back({layer, DropoutSite::Site::attention_probabilities});
  std::set<uint64_t> keys;
  for (const auto& [step, micro_batch] : {std::pair{0, 0}, {0, 1}, {1, 0}, {1, 1}}) {
    const auto key = nn::masks_key(/*seed=*/0, step, micro_batch);
    for (const DropoutSite& place : places) keys.insert(nn::mask_key(key, place).value);
  }
  return keys.size() < 4 * places.size();
}

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

Check check_mesh(const comm::Group& group) {
  const std::vector<AxisCase> cases = axis_cases(group);
  const auto errors = comm::gather_values(first_error(cases, group), group);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank] < 0) continue;
    const std::string name = cases[static_cast<size_t>(errors[rank])].name();
    return {"mesh", "", false, fmt::format("the group of {} is wrong on rank {}", name, rank)};
  }
  return {"mesh", "", true, "tp has all ranks and dp one, in either order"};
}

Check check_dropout_masks(const model::DecoderWeights& weights, const TestCase& test_case,
                          const RunConfig& run_config) {
  const at::NoGradGuard no_grad;
  const int64_t layers = weights.config().num_hidden_layers;
  const Tensor& ids = test_case.tokens.ids;
  // Expanded, so that it takes no memory.
  const Tensor like = at::ones({1, 1, 1}, at::TensorOptions(run_config.dtype))
                          .expand({ids.size(0), ids.size(1), weights.config().hidden_size});
  const std::string name = "dropout masks", scope = run_config.name(weights.group().size());
  for (const DropoutSite& place : residual_places(layers)) {
    const int matches = matches_unsharded(test_case, run_config, weights.group(), place, like);
    int matching = 0;
    for (const int rank : comm::gather_values(matches, weights.group())) matching += rank;
    const int others = weights.group().size() - matching;
    if (others > 0)
      return {name, scope, false,
              fmt::format("{} of {} ranks have another mask after {} than TP=1", others,
                          weights.group().size(), name_of(place))};
  }
  if (has_shared_key(layers)) return {name, scope, false, "two places, micro-batches or steps share a mask"};
  return {name, scope, true, fmt::format("bit-equal to TP=1 at {} places", 2 * layers + 1)};
}

}  // namespace shardwise::doctor
