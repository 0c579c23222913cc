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
  workload.cp = degrees.cp;
  workload.ep = degrees.ep;
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
    const int64_t accumulator = task_.accumulator_bytes();
    const int64_t masters = task_.element_bytes < accumulator ? accumulator : 0;
    const double in_flight = micro_batches_in_flight(degrees_, number_, micro_batches_);
    return {.weights = split(ZeroStage::weights, task_.element_bytes),
            .gradients = split(ZeroStage::gradients, accumulator),
            .optimizer = split(ZeroStage::optimizer, masters + 2 * accumulator),
            .activations = static_cast<int64_t>(in_flight * static_cast<double>(of_one_.saved_bytes)),
            .buffers = costs_.buffer_bytes(blocks_) + gathered_weights()};
  }

  StepTime time(const Machine& machine) const {
    const auto m = static_cast<double>(micro_batches_);
    const double passes = of_one_.forward + of_one_.backward, both = passes + of_one_.communication();
    return {.compute = m * passes,
            .tensor_parallel = m * of_one_.tensor_parallel,
            .context_parallel = m * of_one_.context_parallel,
            .expert_parallel = m * of_one_.expert_parallel,
            .pipeline = m * message_seconds(machine),
            .bubble = static_cast<double>(degrees_.pp - 1) / static_cast<double>(degrees_.chunks) * both,
            .data_parallel = exposed_data_parallel(machine),
            .optimizer = optimizer_seconds(machine)};
  }

 private:
  /// Returns the bytes of a model state that has so many per parameter.
  int64_t split(ZeroStage least, int64_t bytes) const {
    const int64_t shared = of_one_.parameters * bytes, experts = of_one_.expert_parameters * bytes;
    if (degrees_.zero < least) return shared + experts;
    return parts_of(shared, degrees_.replicas()) + parts_of(experts, degrees_.expert_replicas());
  }

  /// ZeRO 3 gathers a block's weights while the one before is computed.
  int64_t gathered_weights() const {
    if (degrees_.zero != ZeroStage::weights) return 0;
    const LayerCosts& block = costs_.largest_block();
    return 2 * task_.element_bytes *
           ((degrees_.replicas() > 1 ? block.parameters : 0) +
            (degrees_.expert_replicas() > 1 ? block.expert_parameters : 0));
  }

  /// The messages of a micro-batch, both ways. With TP each rank sends its part of the residual stream.
  double message_seconds(const Machine& machine) const {
    const int64_t of_stage = degrees_.tp * degrees_.cp * degrees_.dp;
    const CollectiveTime time(machine, {.ranks = degrees_.pp, .stride = of_stage});
    const double hidden = static_cast<double>(task_.sequence_length * degrees_.micro_batch_size *
                                              task_.config.hidden_size * task_.element_bytes);
    return 2 * static_cast<double>(degrees_.chunks) *
           time.send(hidden / static_cast<double>(degrees_.tp * degrees_.cp));
  }

  /// Seconds of one reduction of all gradients, and of one gather of all weights: block by block, so that the
  /// first ones are sent while the others are computed.
  struct Sums {
    double gradients = 0, weights = 0;
  };
  Sums sums_over(const Machine& machine, const RankGroup& group, int64_t parameters) const {
    const CollectiveTime time(machine, group);
    const auto ranks = static_cast<double>(group.ranks), blocks = static_cast<double>(blocks_.size());
    const double sent = static_cast<double>(parameters) * (ranks - 1) / ranks / blocks;
    return {blocks * time.reduce_scatter(sent * static_cast<double>(task_.accumulator_bytes())),
            blocks * time.all_gather(sent * static_cast<double>(task_.element_bytes))};
  }

  /// Collectives of the data-parallel ranks that the passes of one micro-batch do not hide.
  double exposed_data_parallel(const Machine& machine) const {
    const Sums shared =
        sums_over(machine, {.ranks = degrees_.replicas(), .stride = degrees_.tp}, of_one_.parameters);
    Sums experts;
    if (of_one_.expert_parameters > 0)
      experts = sums_over(machine, {.ranks = degrees_.expert_replicas(), .stride = degrees_.ep},
                          of_one_.expert_parameters);
    const double gradients = shared.gradients + experts.gradients, weights = shared.weights + experts.weights;
    const auto m = static_cast<double>(micro_batches_);
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
    return static_cast<double>(split(ZeroStage::optimizer, moved)) / machine.update_bytes_per_second.value;
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

double step_flop(const TrainingTask& task) {
  Degrees whole;
  whole.micro_batch_size = task.batch_size;
  const Workload workload = micro_batch_workload(task, whole);
  std::map<BlockKind, double> of_block;
  const auto flop = [](const Operations& operations) { return flop_of(operations).model; };
  const Workload last = one_of_three_blocks(workload, 0, 2);
  double sum = flop(embedding_operations(workload, 0)) + flop(head_operations(last, 0));
  for (int64_t layer = 0; layer < task.config.num_hidden_layers; ++layer) {
    double& one = of_block[kind_of(task.config, layer)];
    if (one == 0)
      one = flop(block_operations(one_of_three_blocks(workload, layer, 1), 0, 1, CountedKeys::all));
    sum += one;
  }
  return sum;
}

double micro_batches_in_flight(const Degrees& degrees, int64_t stage, int64_t micro_batches) {
  const int64_t p = degrees.pp, v = degrees.chunks, m = micro_batches;
  if (v == 1) return static_cast<double>(std::min(m, p - stage));
  const int64_t chunks = 2 * (p - stage - 1) + (v - 1) * p + 1;
  return static_cast<double>(std::min(chunks, m * v)) / static_cast<double>(v);
}

TrainingPlanner::TrainingPlanner(TrainingTask task, Machine machine)
    : task_(std::move(task)), machine_(std::move(machine)), model_flop_(step_flop(task_)) {}

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

const StageBuffers& TrainingPlanner::buffers_of(const Key& key, const Workload& workload) {
  const auto found = buffers_.find(key);
  return found != buffers_.end() ? found->second
                                 : buffers_.emplace(key, stage_buffers(workload)).first->second;
}

const MicroBatchCosts& TrainingPlanner::costs_of(const Degrees& degrees) {
  const Key key{degrees.tp, degrees.cp, degrees.has_sequence_parallel, degrees.micro_batch_size,
                degrees.recompute};
  const auto found = costs_.find({key, degrees.ep});
  if (found != costs_.end()) return found->second;
  const Workload workload = micro_batch_workload(task_, degrees, machine_);
  MicroBatchCosts costs(workload, buffers_of(key, workload), machine_);
  return costs_.emplace(std::pair{key, degrees.ep}, std::move(costs)).first->second;
}

}  // namespace shardwise::plan
