#include "shardwise/plan/exposed_communication.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/operation_time.h"
#include "shardwise/plan/required_gradients.h"

namespace shardwise::plan {
namespace {

/// Returns the operations that have one of the names.
Operations named(const Operations& operations, std::initializer_list<std::string_view> names) {
  Operations found;
  for (const Operation& one : operations)
    if (std::ranges::count(names, one.name) > 0) found.push_back(one);
  return found;
}

/// A layer whose collectives overlap with its products.
class Layer {
 public:
  Layer(const Workload& workload, const Machine& machine, Operations products)
      : machine_(machine),
        time_(machine, workload.element_bytes),
        collectives_(machine, {.ranks = workload.tp}),
        ranks_(workload.tp),
        products_(std::move(products)) {}

  /// An all_reduce needs the whole product, and the next layer all of it.
  double forward(const Collectives& of) const {
    return alone({.all_reduce = of.all_reduce}) +
           in_parts({.all_gather = of.all_gather, .reduce_scatter = of.reduce_scatter},
                    &OperationTime::forward);
  }
  /// The input is gathered for dW beside dX = dY·W; dX is summed beside dW = dYᵀ·X.
  double column_backward(const Collectives& of) const {
    return beside({.all_gather = of.all_gather}, &OperationTime::input_gradient) +
           beside({.all_reduce = of.all_reduce, .reduce_scatter = of.reduce_scatter},
                  &OperationTime::weight_gradient);
  }
  /// dY is gathered for both gradients.
  double row_backward(const Collectives& of) const { return in_parts(of, &OperationTime::gradients); }

 private:
  using Seconds = double (OperationTime::*)(const Operation&) const;

  double alone(const Collectives& of) const { return collectives_.of(of); }
  double beside(const Collectives& of, Seconds seconds) const {
    const double compute = sum(products_, seconds);
    return exposed(of, {.compute = compute, .in_parts = compute, .waiting = 0});
  }
  double in_parts(const Collectives& of, Seconds seconds) const {
    Operations parts = products_;
    for (Operation& one : parts) one.count *= ranks_;
    const double starts =
        static_cast<double>((ranks_ - 1) * std::ssize(parts)) * machine_.seconds_per_operation.value;
    const double all = sum(parts, seconds) + starts;
    return exposed(
        of,
        {.compute = sum(products_, seconds), .in_parts = all, .waiting = all / static_cast<double>(ranks_)});
  }
  double exposed(const Collectives& of, Overlapped pair) const {
    pair.collective = alone(of);
    pair.share = collectives_.processor_share();
    return pair.exposed();
  }
  double sum(const Operations& operations, Seconds seconds) const {
    double all = 0;
    for (const Operation& one : operations) all += (time_.*seconds)(one);
    return all;
  }

  const Machine& machine_;
  OperationTime time_;
  CollectiveTime collectives_;
  int64_t ranks_;
  Operations products_;
};

/// Attention or the MLP of a half of the batch, with its norm: seconds of each alone.
struct Branch {
  double forward = 0, backward = 0;              // of the operations
  double reduced_output = 0, reduced_input = 0;  // of the all_reduces after them
};

/// Returns attention and MLP of a half whose operations are [begin, end).
std::array<Branch, 2> branches_of(const Workload& half, int rank, int64_t layer, const Operation* begin,
                                  const Operation* end, const Machine& machine) {
  const OperationTime time(machine, half.element_bytes);
  const CollectiveTime collectives(machine, {.ranks = half.tp});
  const LayerPasses of = layer_communication(half, rank, layer);
  Branch attention{.reduced_output = collectives.of(of.out.forward),
                   .reduced_input = collectives.of(of.qkv.backward)},
      mlp{.reduced_output = collectives.of(of.down.forward), .reduced_input = collectives.of(of.up.backward)};
  Branch* branch = &attention;
  for (const Operation* one = begin; one != end; ++one) {
    branch->forward += time.forward(*one);
    branch->backward += time.backward(*one);
    if (one->name == "o_proj") branch = &mlp;
  }
  return {attention, mlp};
}

/// In forward attention of both halves, then the MLP of both, then the next block; in backward the reverse.
/// An all_reduce is in flight while the branch after its own is computed.
double exposed_split_seconds(const Workload& workload, int rank, int64_t layer, const Operations& operations,
                             const Machine& machine) {
  const Operation *begin = operations.data(), *middle = begin + operations.size() / 2,
                  *end = begin + operations.size();
  const auto first = branches_of(workload.half_batch(0), rank, layer, begin, middle, machine),
             second = branches_of(workload.half_batch(1), rank, layer, middle, end, machine);
  const Branch order[] = {first[0], second[0], first[1], second[1]};
  const double share = CollectiveTime(machine, {.ranks = workload.tp}).processor_share();
  const auto beside = [&](double collective, double compute) {
    return Overlapped{collective, compute, /*in_parts=*/compute, /*waiting=*/0, share}.exposed();
  };
  double exposed = 0;
  for (size_t i = 0; i < 4; ++i)
    exposed += beside(order[i].reduced_output, order[(i + 1) % 4].forward) +
               beside(order[i].reduced_input, order[(i + 3) % 4].backward);
  return exposed;
}

}  // namespace

double Overlapped::exposed() const {
  const double together = std::max(in_parts + share * collective, waiting + collective);
  return std::clamp(together - compute, 0.0, collective);
}

double exposed_block_seconds(const Workload& workload, int rank, int64_t layer, const Operations& operations,
                             const Machine& machine) {
  if (workload.tp == 1) return 0;
  if (machine.shares_memory || !workload.overlaps_collectives)
    return CollectiveTime(machine, {.ranks = workload.tp})
        .of(block_communication(workload, rank, layer).both());
  if (workload.split_batch) return exposed_split_seconds(workload, rank, layer, operations, machine);
  const LayerPasses of = layer_communication(workload, rank, layer);
  const auto layer_of = [&](std::initializer_list<std::string_view> names) {
    return Layer(workload, machine, named(operations, names));
  };
  const Layer qkv = layer_of({"qkv_proj", "q_b_proj", "kv_b_proj"}), out = layer_of({"o_proj"}),
              up = layer_of({"gate_up_proj", "up_proj"}), down = layer_of({"down_proj"});
  const double without_down =
      qkv.forward(of.qkv.forward) + out.forward(of.out.forward) + up.forward(of.up.forward);
  const bool repeats = workload.recompute == Recompute::full && workload.required_by_block(layer).any();
  return (repeats ? 2 : 1) * without_down + down.forward(of.down.forward) +
         qkv.column_backward(of.qkv.backward) + out.row_backward(of.out.backward) +
         up.column_backward(of.up.backward) + down.row_backward(of.down.backward);
}

}  // namespace shardwise::plan
