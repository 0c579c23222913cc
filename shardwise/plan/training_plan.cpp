#include "shardwise/plan/training_plan.h"

#include <algorithm>

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/one_block_stages.h"
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
  workload.split_batch = degrees.splits_batch;
  workload.overlaps_collectives = task.overlaps_collectives;
  workload.frozen = task.frozen;
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
    const double in_flight = micro_batches_in_flight(degrees_, number_, micro_batches_);
    MemoryByClass memory = states(task_.state_bytes());
    memory.activations = static_cast<int64_t>(in_flight * static_cast<double>(of_one_.saved_bytes));
    memory.buffers = costs_.buffer_bytes(blocks_) + gathered_weights();
    return memory;
  }

  StepTime time(const Machine& machine) const {
    const auto m = static_cast<double>(micro_batches_);
    const double passes = of_one_.forward + of_one_.backward, both = passes + of_one_.communication();
    return {.compute = m * passes,
            .tensor_parallel = m * of_one_.tensor_parallel + synchronization(machine),
            .context_parallel = m * of_one_.context_parallel,
            .expert_parallel = m * of_one_.expert_parallel,
            .pipeline = m * message_seconds(machine) + tied_gradients(machine),
            .bubble = static_cast<double>(degrees_.pp - 1) / static_cast<double>(degrees_.chunks) * both,
            .data_parallel = exposed_data_parallel(machine),
            .optimizer = optimizer_seconds(machine)};
  }

 private:
  MemoryByClass states(const StateBytes& bytes) const {
    const int64_t replicas = degrees_.replicas();
    MemoryByClass all =
        state_memory(of_one_.trained_parameters, bytes, degrees_.zero, replicas) +
        state_memory(of_one_.parameters - of_one_.trained_parameters, {bytes.weight, 0, 0}, degrees_.zero,
                     replicas) +
        state_memory(of_one_.expert_parameters, bytes, degrees_.zero, degrees_.expert_replicas());
    if (task_.shares_weights) all.weights = parts_of(all.weights, degrees_.dp);
    return all;
  }

  /// ZeRO 3 gathers a block's weights while the one before is computed.
  int64_t gathered_weights() const {
    if (degrees_.zero != ZeroStage::weights) return 0;
    const LayerCosts& block = costs_.largest_block();
    return 2 * task_.element_bytes *
           ((degrees_.replicas() > 1 ? block.parameters : 0) +
            (degrees_.expert_replicas() > 1 ? block.expert_parameters : 0));
  }

  /// The messages of a micro-batch, both ways if gradients are required. With TP each rank sends its part of
  /// the residual stream.
  double message_seconds(const Machine& machine) const {
    const int64_t of_stage = degrees_.tp * degrees_.cp * degrees_.dp;
    const CollectiveTime time(machine, {.ranks = degrees_.pp, .stride = of_stage});
    const double hidden = static_cast<double>(task_.sequence_length * degrees_.micro_batch_size *
                                              task_.config.hidden_size * task_.element_bytes);
    const double ways = costs_.sends_gradients(blocks_) ? 2 : 1;
    return ways * static_cast<double>(degrees_.chunks) *
           time.send(hidden / static_cast<double>(degrees_.tp * degrees_.cp));
  }

  /// After the step, gradients that are partial sums of tensor-parallel ranks are summed, and a norm.
  double synchronization(const Machine& machine) const {
    const CollectiveTime time(machine, {.ranks = degrees_.tp});
    const auto ranks = static_cast<double>(degrees_.tp);
    const auto sent = [&](int64_t bytes) { return 2 * static_cast<double>(bytes) * (ranks - 1) / ranks; };
    const int64_t bytes = of_one_.synchronized * task_.state_bytes().gradient;
    return (bytes > 0 ? time.all_reduce(sent(bytes)) : 0) + time.all_reduce(sent(sizeof(double)));
  }

  /// The first and the last stage sum the gradients of an embedding that is the head too.
  double tied_gradients(const Machine& machine) const {
    const bool is_alone = degrees_.pp == 1 || (number_ > 0 && number_ < degrees_.pp - 1);
    if (is_alone || costs_.trained_tied_parameters() == 0) return 0;
    const int64_t of_stage = degrees_.tp * degrees_.cp * degrees_.dp;
    const CollectiveTime time(machine, {.ranks = 2, .stride = of_stage * (degrees_.pp - 1)});
    return time.all_reduce(
        static_cast<double>(costs_.trained_tied_parameters() * task_.state_bytes().gradient));
  }

  /// Seconds of one reduction of the gradients of `trained` parameters, and of one gather of `gathered`
  /// weights: block by block, so that the first ones are sent while the others are computed.
  struct Sums {
    double gradients = 0, weights = 0;
  };
  Sums sums_over(const Machine& machine, const RankGroup& group, int64_t trained, int64_t gathered) const {
    const CollectiveTime time(machine, group);
    const auto ranks = static_cast<double>(group.ranks), blocks = static_cast<double>(blocks_.size());
    const auto sent = [&](int64_t parameters, int64_t bytes) {
      return static_cast<double>(parameters * bytes) * (ranks - 1) / ranks / blocks;
    };
    return {trained > 0 ? blocks * time.reduce_scatter(sent(trained, task_.state_bytes().gradient)) : 0,
            gathered > 0 ? blocks * time.all_gather(sent(gathered, task_.element_bytes)) : 0};
  }

  /// Collectives of the data-parallel ranks that the passes of one micro-batch do not hide.
  double exposed_data_parallel(const Machine& machine) const {
    const bool gathers_all = degrees_.zero == ZeroStage::weights;
    const Sums shared =
        sums_over(machine, {.ranks = degrees_.replicas(), .stride = degrees_.tp}, of_one_.trained_parameters,
                  gathers_all ? of_one_.parameters : of_one_.trained_parameters);
    Sums experts;
    if (of_one_.expert_parameters > 0)
      experts = sums_over(machine, {.ranks = degrees_.expert_replicas(), .stride = degrees_.ep},
                          of_one_.expert_parameters, of_one_.expert_parameters);
    const double gradients = shared.gradients + experts.gradients;
    const double weights = task_.shares_weights ? 0 : shared.weights + experts.weights;
    const auto m = static_cast<double>(micro_batches_);
    const double hidden = task_.hides_gradient_sums ? 1 : 0;
    const auto in_forward = [&](double seconds) { return std::max(0.0, seconds - hidden * of_one_.forward); };
    const auto in_backward = [&](double seconds) {
      return std::max(0.0, seconds - hidden * of_one_.backward);
    };
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

  /// Two passes over gradients, weights and moments: the norm reads the gradients, the update reads all and
  /// writes weights and moments, and the 16-bit copies of master weights; then the gradients are zeroed.
  double optimizer_seconds(const Machine& machine) const {
    const StateBytes& state = task_.state_bytes();
    const bool has_copies = task_.element_bytes < 4;
    const int64_t updated = state.optimizer + (has_copies ? 0 : state.weight);
    const StateBytes moved{0, 0, 3 * state.gradient + 2 * updated + (has_copies ? state.weight : 0)};
    return static_cast<double>(states(moved).optimizer) / machine.update_bytes_per_second.value;
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

StateBytes TrainingTask::state_bytes() const {
  const int64_t accumulator = accumulator_bytes(), master = element_bytes < 4 ? accumulator : 0;
  return {element_bytes, gradient_bytes, master + 2 * accumulator};
}

MemoryByClass operator+(const MemoryByClass& a, const MemoryByClass& b) {
  return {a.weights + b.weights, a.gradients + b.gradients, a.optimizer + b.optimizer,
          a.activations + b.activations, a.buffers + b.buffers};
}

MemoryByClass state_memory(int64_t parameters, const StateBytes& bytes, ZeroStage zero, int64_t replicas) {
  const auto split = [&](ZeroStage least, int64_t of_one) {
    return zero < least ? parameters * of_one : parts_of(parameters * of_one, replicas);
  };
  return {.weights = split(ZeroStage::weights, bytes.weight),
          .gradients = split(ZeroStage::gradients, bytes.gradient),
          .optimizer = split(ZeroStage::optimizer, bytes.optimizer)};
}

StepFlop step_flop(const TrainingTask& task, Recompute recompute, CountedKeys keys) {
  Degrees whole;
  whole.micro_batch_size = task.batch_size;
  whole.recompute = recompute;
  const Workload workload = micro_batch_workload(task, whole);
  const std::vector<BlockKind> kinds = kinds_of_blocks(workload);
  const Workload last = one_of_three_blocks(workload, task.config.num_hidden_layers - 1, kinds.back(), 2);
  std::map<BlockKind, StepFlop> of_block;
  StepFlop sum = flop_of(embedding_operations(workload, 0)) + flop_of(head_operations(last, 0));
  for (int64_t layer = 0; layer < task.config.num_hidden_layers; ++layer) {
    StepFlop& one = of_block[kinds[layer]];
    if (one.model == 0)
      one = flop_of(block_operations(one_of_three_blocks(workload, layer, kinds[layer], 1), 0, 1, keys));
    sum = sum + one;
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
    : task_(std::move(task)),
      machine_(std::move(machine)),
      flop_of_visible_keys_(step_flop(task_, Recompute::none, CountedKeys::visible).model) {
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
    flop_[recompute] = step_flop(task_, recompute, CountedKeys::all);
}

TrainingPlan TrainingPlanner::evaluate(const Degrees& degrees) {
  const MicroBatchCosts& costs = costs_of(degrees);
  TrainingPlan plan;
  plan.degrees = degrees;
  plan.flop = flop_.at(degrees.recompute);
  plan.flop_of_visible_keys = flop_of_visible_keys_;
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
                                 : buffers_.emplace(key, stage_buffers(workload, stages_)).first->second;
}

const MicroBatchCosts& TrainingPlanner::costs_of(const Degrees& degrees) {
  const Key key{degrees.tp,
                degrees.cp,
                degrees.has_sequence_parallel,
                degrees.splits_batch,
                degrees.micro_batch_size,
                degrees.recompute};
  const auto found = costs_.find({key, degrees.ep});
  if (found != costs_.end()) return found->second;
  const Workload workload = micro_batch_workload(task_, degrees, machine_);
  MicroBatchCosts costs(workload, buffers_of(key, workload), machine_, stages_);
  return costs_.emplace(std::pair{key, degrees.ep}, std::move(costs)).first->second;
}

}  // namespace shardwise::plan
