#include "shardwise/plan/training_plan.h"

#include <algorithm>

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/operations.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

/// The workload of a micro-batch on all stages together.
Workload micro_batch_workload(const TrainingTask& task, const Degrees& degrees) {
  Workload workload;
  workload.config = task.config;
  workload.tp = static_cast<int>(degrees.tp);
  workload.parallelism =
      degrees.has_sequence_parallel && degrees.tp > 1 ? Parallelism::tp_sp : Parallelism::tp;
  workload.sequence_length = task.sequence_length;
  workload.batch_size = degrees.micro_batch_size;
  workload.element_bytes = task.element_bytes;
  workload.recompute = degrees.recompute;
  return workload;
}

/// As above, with what the program keeps on this machine.
Workload micro_batch_workload(const TrainingTask& task, const Degrees& degrees, const Machine& machine) {
  Workload workload = micro_batch_workload(task, degrees);
  workload.column_input_storage =
      machine.shares_memory ? ColumnInputStorage::shard_in_place : ColumnInputStorage::shard;
  workload.wgrad_operand_bytes = machine.wgrad_operand_bytes;
  return workload;
}

/// Returns the FLOP of a step over all ranks.
double model_flop(const TrainingTask& task) {
  Degrees whole;
  whole.micro_batch_size = task.batch_size;
  const Workload workload = micro_batch_workload(task, whole);
  return flop_of(micro_batch_operations(workload, /*rank=*/0, CountedKeys::all)).model;
}

/// The stages that may be the slowest or need the most memory: the first ones have the most micro-batches in
/// flight and the most blocks, the last one has the head.
std::vector<int64_t> extreme_stages(const Degrees& degrees) {
  if (degrees.pp == 1) return {0};
  if (degrees.pp == 2) return {0, 1};
  return {0, 1, degrees.pp - 1};
}

/// A stage of a plan.
class Stage {
 public:
  Stage(const TrainingTask& task, const Degrees& degrees, const MicroBatchCosts& costs, int64_t stage)
      : task_(task),
        degrees_(degrees),
        costs_(costs),
        number_(stage),
        blocks_(base::Split::even("blocks", task.config.num_hidden_layers, static_cast<int>(degrees.pp))
                    .range(static_cast<int>(stage))),
        of_one_(costs.of_stage(blocks_)),
        micro_batches_(degrees.micro_batches(task.batch_size)) {}

  MemoryByClass memory() const {
    const int64_t n = of_one_.parameters, accumulator = task_.accumulator_bytes();
    const int64_t masters = task_.element_bytes < accumulator ? n * accumulator : 0;
    const double in_flight = micro_batches_in_flight(degrees_, number_, micro_batches_);
    const int64_t gathered = degrees_.zero == ZeroStage::weights && degrees_.dp > 1
                                 ? 2 * costs_.block_parameters() * task_.element_bytes
                                 : 0;
    return {.weights = split(ZeroStage::weights, n * task_.element_bytes),
            .gradients = split(ZeroStage::gradients, n * accumulator),
            .optimizer = split(ZeroStage::optimizer, masters + 2 * n * accumulator),
            .activations = static_cast<int64_t>(in_flight * static_cast<double>(of_one_.saved_bytes)),
            .buffers = costs_.buffer_bytes(blocks_) + gathered};
  }

  StepTime time(const Machine& machine) const {
    const auto m = static_cast<double>(micro_batches_);
    const double passes = of_one_.forward + of_one_.backward, both = passes + of_one_.tensor_parallel;
    return {.compute = m * passes,
            .tensor_parallel = m * of_one_.tensor_parallel,
            .pipeline = m * message_seconds(machine),
            .bubble = static_cast<double>(degrees_.pp - 1) / static_cast<double>(degrees_.chunks) * both,
            .data_parallel = exposed_data_parallel(machine),
            .optimizer = optimizer_seconds(machine)};
  }

 private:
  int64_t split(ZeroStage least, int64_t bytes) const {
    return degrees_.zero >= least ? parts_of(bytes, degrees_.dp) : bytes;
  }

  /// The messages of a micro-batch, both ways. With TP each rank sends its part of the residual stream.
  double message_seconds(const Machine& machine) const {
    const CollectiveTime time(machine, {.ranks = degrees_.pp, .stride = degrees_.tp * degrees_.dp});
    const double hidden = static_cast<double>(task_.sequence_length * degrees_.micro_batch_size *
                                              task_.config.hidden_size * task_.element_bytes);
    return 2 * static_cast<double>(degrees_.chunks) * time.send(hidden / static_cast<double>(degrees_.tp));
  }

  /// Collectives of the data-parallel ranks that the passes of one micro-batch do not hide.
  double exposed_data_parallel(const Machine& machine) const {
    const CollectiveTime time(machine, {.ranks = degrees_.dp, .stride = degrees_.tp});
    const auto ranks = static_cast<double>(degrees_.dp), m = static_cast<double>(micro_batches_);
    const double sent = static_cast<double>(of_one_.parameters) * (ranks - 1) / ranks;
    // Block by block, so that the first ones are sent while the others are computed.
    const auto blocks = static_cast<double>(blocks_.size());
    const auto of_block = [&](int64_t bytes) { return sent / blocks * static_cast<double>(bytes); };
    const double gradients = blocks * time.reduce_scatter(of_block(task_.accumulator_bytes())),
                 weights = blocks * time.all_gather(of_block(task_.element_bytes));
    const auto in_forward = [&](double seconds) { return std::max(0.0, seconds - of_one_.forward); };
    const auto in_backward = [&](double seconds) { return std::max(0.0, seconds - of_one_.backward); };
    switch (degrees_.zero) {
      case ZeroStage::none:
        return in_backward(2 * gradients);
      case ZeroStage::optimizer:
        return in_backward(gradients) + in_forward(weights);
      case ZeroStage::gradients:
        return m * in_backward(gradients) + in_forward(weights);
      case ZeroStage::weights:
        return m * (in_forward(weights) + in_backward(weights + gradients));
    }
    return 0;
  }

  /// Two passes over gradients, weights and moments: the norm reads the gradients, the update reads and
  /// writes all, and writes the 16-bit copies of master weights.
  double optimizer_seconds(const Machine& machine) const {
    const bool has_copies = task_.element_bytes < 4;
    const int64_t moved = 9 * task_.accumulator_bytes() + (has_copies ? task_.element_bytes : 0);
    return static_cast<double>(split(ZeroStage::optimizer, of_one_.parameters * moved)) /
           machine.update_bytes_per_second.value;
  }

  const TrainingTask& task_;
  const Degrees& degrees_;
  const MicroBatchCosts& costs_;
  int64_t number_;
  base::Range blocks_;
  LayerCosts of_one_;
  int64_t micro_batches_;
};

}  // namespace

double micro_batches_in_flight(const Degrees& degrees, int64_t stage, int64_t micro_batches) {
  const int64_t p = degrees.pp, v = degrees.chunks, m = micro_batches;
  if (v == 1) return static_cast<double>(std::min(m, p - stage));
  const int64_t chunks = 2 * (p - stage - 1) + (v - 1) * p + 1;
  return static_cast<double>(std::min(chunks, m * v)) / static_cast<double>(v);
}

TrainingPlanner::TrainingPlanner(TrainingTask task, Machine machine)
    : task_(std::move(task)), machine_(std::move(machine)), model_flop_(model_flop(task_)) {}

TrainingPlan TrainingPlanner::evaluate(const Degrees& degrees) {
  const MicroBatchCosts& costs = costs_of(degrees);
  TrainingPlan plan;
  plan.degrees = degrees;
  plan.model_flop = model_flop_;
  for (const int64_t number : extreme_stages(degrees)) {
    const Stage stage(task_, degrees, costs, number);
    const MemoryByClass memory = stage.memory();
    if (memory.total() > plan.memory.total()) {
      plan.memory = memory;
      plan.peak_stage = number;
    }
    const StepTime time = stage.time(machine_);
    if (time.total() > plan.time.total()) plan.time = time;
  }
  return plan;
}

const MicroBatchCosts& TrainingPlanner::costs_of(const Degrees& degrees) {
  const Key key{degrees.tp, degrees.has_sequence_parallel, degrees.micro_batch_size, degrees.recompute};
  const auto found = costs_.find(key);
  if (found != costs_.end()) return found->second;
  return costs_.emplace(key, MicroBatchCosts(micro_batch_workload(task_, degrees, machine_), machine_))
      .first->second;
}

}  // namespace shardwise::plan
