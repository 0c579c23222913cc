#include "shardwise/plan/search.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardwise/plan/divisors.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

/// Returns the powers of two that divide n.
std::vector<int64_t> powers_of_two(int64_t n) {
  std::vector<int64_t> found;
  for (int64_t i = 1; n % i == 0; i *= 2) found.push_back(i);
  return found;
}

template <class T>
bool allows(const std::optional<T>& pin, const T& value) {
  return !pin || *pin == value;
}

/// Returns why the axes cannot be used at all, or an empty text.
std::string refusal_of_axes(const TrainingTask& task, const Pins& pins, const Degrees& degrees) {
  const config::Config& c = task.config;
  if (degrees.tp > c.num_attention_heads)
    return fmt::format("tp {} is more than the {} query heads", degrees.tp, c.num_attention_heads);
  if (pins.split_batch && degrees.tp == 1) return "split batches need tp 2 or more";
  if (degrees.pp > c.num_hidden_layers)
    return fmt::format("pp {} is more than the {} blocks", degrees.pp, c.num_hidden_layers);
  if (task.batch_size % degrees.dp != 0)
    return fmt::format("dp {} does not divide the batch of {} sequences", degrees.dp, task.batch_size);
  if (degrees.cp > 1 && 2 * degrees.cp > task.sequence_length)
    return fmt::format("cp {} has more than half as many ranks as a sequence has tokens, {}", degrees.cp,
                       task.sequence_length);
  if (const int64_t ranks = degrees.tp * degrees.cp * degrees.dp; ranks % degrees.ep != 0)
    return fmt::format("ep {} does not divide the {} ranks of a stage", degrees.ep, ranks);
  return "";
}

std::string refusal_of_memory(const MemoryByClass& memory, int64_t stage, int64_t usable) {
  const auto gb = [](int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  return fmt::format("stage {} needs {:.1f} GB of {:.1f} (states {:.1f}, activations {:.1f}, buffers {:.1f})",
                     stage, gb(memory.total()), gb(usable),
                     gb(memory.weights + memory.gradients + memory.optimizer), gb(memory.activations),
                     gb(memory.buffers));
}

class Search {
 public:
  Search(const TrainingTask& task, const Machine& machine, const Pins& pins, int64_t usable)
      : task_(task), pins_(pins), usable_(usable), planner_(task, machine) {}

  SearchResult run() {
    for (const int64_t tp : divisors(task_.ranks, pins_.tp))
      for (const int64_t pp : divisors(task_.ranks / tp, pins_.pp))
        for (const int64_t cp : divisors(task_.ranks / tp / pp, pins_.cp))
          try_experts({.tp = tp, .cp = cp, .pp = pp, .dp = task_.ranks / tp / pp / cp});
    std::ranges::stable_sort(result_.plans, {}, [](const TrainingPlan& plan) { return plan.time.total(); });
    return std::move(result_);
  }

 private:
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

  /// Without experts, and where a pin can only be refused, one ep is tried.
  void try_experts(Degrees degrees) {
    if (!allows(pins_.dp, degrees.dp)) return;
    std::vector<int64_t> sizes{pins_.ep.value_or(1)};
    if (task_.config.experts && !pins_.ep) sizes = divisors(degrees.tp * degrees.cp * degrees.dp);
    for (const int64_t ep : sizes) {
      degrees.ep = ep;
      if (!task_.config.experts || pins_.ep || ep <= task_.config.experts->count) try_axes(degrees);
    }
  }

  void try_axes(Degrees degrees) {
    if (const std::string reason = refusal_of_axes(task_, pins_, degrees); !reason.empty()) {
      refuse(degrees, reason);
      return;
    }
    const int64_t sequences = task_.batch_size / degrees.dp;
    if (pins_.micro_batch_size) {
      degrees.micro_batch_size = *pins_.micro_batch_size;
      if (sequences % degrees.micro_batch_size == 0) return try_micro_batch(degrees);
      return refuse(degrees, fmt::format("a micro-batch of {} does not divide the {} sequences of a replica",
                                         degrees.micro_batch_size, sequences));
    }
    std::vector<int64_t> sizes = powers_of_two(sequences);
    if (pins_.split_batch) std::erase(sizes, 1);
    if (sizes.empty())
      return refuse(degrees, fmt::format("split batches need an even number of sequences; a replica has {}",
                                         sequences));
    try_micro_batches(degrees, sizes);
  }

  /// A larger micro-batch saves no less. So none is tried after one whose states and saved tensors alone do
  /// not fit. (Buffers may be smaller: weight gradients sum other runs of rows.)
  void try_micro_batches(Degrees degrees, const std::vector<int64_t>& sizes) {
    std::optional<int64_t> too_large;
    for (const int64_t size : sizes) {
      degrees.micro_batch_size = size;
      if (too_large) {
        refuse(degrees,
               fmt::format("a micro-batch of {} saves no less than one of {}, which does not fit", size,
                           *too_large),
               least_needed_);
        continue;
      }
      least_kept_ = least_needed_ = kMost;
      try_micro_batch(degrees);
      if (least_kept_ > usable_ && least_kept_ < kMost) too_large = size;
    }
  }

  void try_micro_batch(const Degrees& degrees) {
    if (pins_.zero && !splits_over_stages(degrees, *pins_.zero))
      return refuse(degrees,
                    "zero 2 and 3 need pp 1: each micro-batch in flight would reduce or gather anew");
    if (pins_.chunks > 1 && !has_interleaved_schedule(degrees, *pins_.chunks))
      return refuse(degrees,
                    fmt::format("{} chunks a stage need blocks that {} divides, and a multiple of {} "
                                "micro-batches",
                                *pins_.chunks, degrees.pp * *pins_.chunks, degrees.pp));
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (const ZeroStage zero :
           {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients, ZeroStage::weights})
        if (allows(pins_.recompute, recompute) && allows(pins_.zero, zero))
          try_schedules(degrees, recompute, zero);
  }

  void try_schedules(Degrees degrees, Recompute recompute, ZeroStage zero) {
    degrees.recompute = recompute;
    degrees.zero = zero;
    degrees.splits_batch = pins_.split_batch;
    for (const bool sp : {true, false}) {
      for (const int64_t chunks : divisors(task_.config.num_hidden_layers / degrees.pp)) {
        degrees.has_sequence_parallel = sp;
        degrees.chunks = chunks;
        if (allows(pins_.chunks, chunks) && is_schedule(degrees)) try_one(degrees);
      }
    }
  }

  /// The rules of nn/split_batch.h, but for the micro-batch.
  static bool can_split_batch(const Degrees& degrees) {
    return degrees.tp > 1 && !degrees.has_sequence_parallel && degrees.recompute != Recompute::full;
  }

  bool has_replicas(const Degrees& degrees) const {
    return degrees.replicas() > 1 || (task_.config.experts && degrees.expert_replicas() > 1);
  }

  bool splits_over_stages(const Degrees& degrees, ZeroStage zero) const {
    return degrees.pp == 1 || zero <= ZeroStage::optimizer || !has_replicas(degrees);
  }

  /// Whether the combination differs from one already tried, and has a schedule.
  bool is_schedule(const Degrees& degrees) const {
    if (!has_replicas(degrees) && degrees.zero != ZeroStage::none && !pins_.zero) return false;
    if (degrees.tp == 1 ? !degrees.has_sequence_parallel
                        : !allows(pins_.sequence_parallel, degrees.has_sequence_parallel))
      return false;
    if (task_.config.experts && !degrees.has_sequence_parallel) return false;
    if (degrees.splits_batch && !can_split_batch(degrees)) return false;
    if (!splits_over_stages(degrees, degrees.zero)) return false;
    return degrees.chunks == 1 || has_interleaved_schedule(degrees, degrees.chunks);
  }

  /// Chunks of equal size, and micro-batches in groups of pp (Narayanan et al. 2021).
  bool has_interleaved_schedule(const Degrees& degrees, int64_t chunks) const {
    return degrees.pp > 1 && task_.config.num_hidden_layers % (degrees.pp * chunks) == 0 &&
           degrees.micro_batches(task_.batch_size) % degrees.pp == 0;
  }

  void refuse(const Degrees& degrees, std::string reason, int64_t needed_bytes = 0) {
    result_.refused.push_back({degrees, std::move(reason), needed_bytes});
  }

  void try_one(const Degrees& degrees) {
    const TrainingPlan plan = planner_.evaluate(degrees);
    least_kept_ = std::min(least_kept_, plan.memory.total() - plan.memory.buffers);
    least_needed_ = std::min(least_needed_, plan.memory.total());
    if (plan.memory.total() > usable_) {
      refuse(degrees, refusal_of_memory(plan.memory, plan.peak_stage, usable_), plan.memory.total());
    } else {
      result_.plans.push_back(plan);
    }
  }

  const TrainingTask& task_;
  const Pins& pins_;
  int64_t usable_;
  TrainingPlanner planner_;
  SearchResult result_;
  // Of the plans tried last with one micro-batch: the least memory, and the least without buffers.
  int64_t least_needed_ = kMost, least_kept_ = kMost;
};

void check(const TrainingTask& task, const Pins& pins) {
  TORCH_CHECK_VALUE(task.ranks >= 1 && task.batch_size >= 1 && task.sequence_length >= 1,
                    "plan: ranks, batch and sequence length must be positive; got ", task.ranks, ", ",
                    task.batch_size, " and ", task.sequence_length, " [SW0755]");
  TORCH_CHECK_VALUE(task.batch_size <= kMostTokens / task.sequence_length, "plan: a step must have at most ",
                    kMostTokens, " tokens; got ", task.batch_size, " x ", task.sequence_length, " [SW0764]");
  check_expert_ranks(task.config, pins.ep.value_or(1));
  const int64_t pinned =
      pins.tp.value_or(1) * pins.cp.value_or(1) * pins.pp.value_or(1) * pins.dp.value_or(1);
  TORCH_CHECK_VALUE(pinned >= 1 && task.ranks % pinned == 0,
                    "plan: pinned degrees must divide the number of ranks; got a product of ", pinned,
                    " and ", task.ranks, " ranks [SW0756]");
}

void check_split_batch(const TrainingTask& task, const Machine& machine, const Pins& pins) {
  TORCH_CHECK_VALUE(!task.config.experts,
                    "plan: split batches need a model without experts, which need sequence parallelism; got ",
                    task.config.experts ? task.config.experts->count : 0, " experts [SW0832]");
  TORCH_CHECK_VALUE(!machine.shares_memory,
                    "plan: split batches need a backend that progresses asynchronously, such as NCCL; got ",
                    machine.name, ", whose ranks share memory [SW0833]");
  TORCH_CHECK_VALUE(pins.micro_batch_size.value_or(2) >= 2,
                    "plan: split batches need micro-batches of 2 sequences or more; got ",
                    *pins.micro_batch_size, " [SW0834]");
  TORCH_CHECK_VALUE(pins.recompute != Recompute::full,
                    "plan: split batches need recompute none or selective; got full [SW0835]");
}

}  // namespace

SearchResult search(const TrainingTask& task, const Machine& machine, const Pins& pins,
                    std::optional<int64_t> memory_cap) {
  check(task, pins);
  if (pins.split_batch) check_split_batch(task, machine, pins);
  return Search(task, machine, pins, machine.usable_bytes(memory_cap)).run();
}

}  // namespace shardwise::plan
