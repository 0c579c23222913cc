#include "shardwise/plan/micro_batch_costs.h"

#include <algorithm>

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/context_parallel.h"
#include "shardwise/plan/expert_shard.h"
#include "shardwise/plan/exposed_communication.h"
#include "shardwise/plan/memory.h"
#include "shardwise/plan/operation_time.h"
#include "shardwise/plan/peak.h"
#include "shardwise/plan/required_gradients.h"

namespace shardwise::plan {
namespace {

constexpr int kRank = 0;  // has the largest shard of everything
constexpr int64_t kFirst = 0, kInner = 1, kLast = 2;

LayerCosts costs_of(const Workload& workload, const Operations& operations, const Collectives& collectives,
                    const Machine& machine) {
  const OperationTime time(machine, workload.element_bytes);
  LayerCosts costs;
  for (const Operation& one : operations) {
    costs.forward += time.forward(one);
    costs.backward += time.backward(one);
  }
  costs.tensor_parallel = CollectiveTime(machine, {.ranks = workload.tp}).of(collectives);
  return costs;
}

/// Rows are sent to the experts and back, and their gradients the other way. A repeated forward does not need
/// them back.
double expert_seconds(const Workload& workload, const Machine& machine) {
  if (!workload.config.experts) return 0;
  const int64_t row = workload.config.hidden_size * workload.element_bytes;
  const auto bytes = static_cast<double>(expert_shard(workload).sent_rows * row);
  const double calls = workload.recompute == Recompute::full ? 5 : 4;
  return calls * CollectiveTime(machine, {.ranks = workload.ep}).all_to_all(bytes);
}

void add_parameters(LayerCosts& costs, const ParameterSums& sums) {
  costs.parameters += sums.parameters;
  costs.trained_parameters += sums.trained;
  costs.expert_parameters += sums.experts;
  costs.synchronized += sums.synchronized;
}

/// Takes away what a block has of `costs`.
void subtract_parameters(LayerCosts& costs, const LayerCosts& block) {
  costs.parameters -= block.parameters;
  costs.trained_parameters -= block.trained_parameters;
  costs.expert_parameters -= block.expert_parameters;
  costs.synchronized -= block.synchronized;
}

LayerCosts block_costs(const Workload& one, const Machine& machine, const ParameterSums& sums) {
  const Operations operations = block_operations(one, kRank, kInner, CountedKeys::visible);
  LayerCosts costs = costs_of(one, operations, {}, machine);
  costs.tensor_parallel = exposed_block_seconds(one, kRank, kInner, operations, machine);
  const Passes context = context_communication(one, kRank);
  costs.context_parallel =
      CollectiveTime(machine, {.ranks = one.cp, .stride = one.tp})
          .of(one.required_by_block(kInner).attention.any ? context.both() : context.forward);
  costs.expert_parallel = expert_seconds(one, machine);
  costs.saved_bytes = total(saved_by_block(one, kRank, kInner));
  add_parameters(costs, sums);
  return costs;
}

/// The gradients of what the experts save, and the rows and their gradients on their way.
int64_t expert_buffers(const Workload& workload) {
  if (!workload.config.experts) return 0;
  const int64_t features = 2 * workload.config.hidden_size + 3 * workload.config.experts->intermediate_size;
  return expert_shard(workload).rows * features * workload.element_bytes;
}

/// Returns the bytes beside states and the block's saved tensors at the peak of a stage of one block.
/// Gathered keys and values have gradients of their size. 0 if nothing is trained: another block of the stage
/// needs more.
int64_t buffers_of(const Workload& workload, const ParameterSums& sums) {
  if (workload.frozen.are_all()) return 0;
  int64_t of_process = 0, of_heap = 0;
  for (const MemorySnapshot& snapshot : pass_candidates(workload, kRank)) {
    of_process = std::max(of_process, total(snapshot.allocations, Pool::private_memory));
    of_heap = std::max(of_heap, total(snapshot.allocations, Pool::symmetric_heap));
  }
  int64_t& of_sums = workload.partial_sum_pool() == Pool::symmetric_heap ? of_heap : of_process;
  of_sums = std::max(of_sums, sums.synchronized * workload.accumulator_bytes());
  const int64_t saved = total(saved_by_block(workload, kRank, workload.blocks().begin));
  return std::max<int64_t>(of_process + of_heap - saved, 0) + 2 * gathered_key_value_bytes(workload, kRank);
}

}  // namespace

LayerCosts& LayerCosts::operator+=(const LayerCosts& layer) {
  forward += layer.forward;
  backward += layer.backward;
  tensor_parallel += layer.tensor_parallel;
  context_parallel += layer.context_parallel;
  expert_parallel += layer.expert_parallel;
  saved_bytes += layer.saved_bytes;
  parameters += layer.parameters;
  trained_parameters += layer.trained_parameters;
  expert_parameters += layer.expert_parameters;
  synchronized += layer.synchronized;
  return *this;
}

StageBuffers stage_buffers(const Workload& workload, OneBlockStages& stages) {
  workload.validate();
  StageBuffers most;
  for (const auto& kind_and_layer : layers_of_kinds(kinds_of_blocks(workload))) {
    const auto buffers = [&](int64_t block) {
      const auto& [kind, layer] = kind_and_layer;
      const Workload one = stages.workload(workload, layer, kind, block);
      return buffers_of(one, stages.sums(one, kind));
    };
    most.first = std::max(most.first, buffers(kFirst));
    most.inner = std::max(most.inner, buffers(kInner));
    most.last = std::max(most.last, buffers(kLast));
  }
  return most;
}

MicroBatchCosts::MicroBatchCosts(const Workload& workload, const StageBuffers& buffers,
                                 const Machine& machine, OneBlockStages& stages)
    : config_(workload.config), buffers_(buffers) {
  workload.validate();
  kinds_ = kinds_of_blocks(workload);
  for (const auto& [kind, layer] : layers_of_kinds(kinds_)) {
    const Workload one = stages.workload(workload, layer, kind, kInner);
    block_[kind] = block_costs(one, machine, stages.sums(one, kind));
  }
  for (int64_t* bytes : {&buffers_.first, &buffers_.inner, &buffers_.last})
    *bytes += expert_buffers(workload);
  const int64_t last_layer = config_.num_hidden_layers - 1;
  const Workload first = stages.workload(workload, 0, kinds_.front(), kFirst),
                 last = stages.workload(workload, last_layer, kinds_.back(), kLast);
  const ParameterSums &of_first = stages.sums(first, kinds_.front()),
                      &of_last = stages.sums(last, kinds_.back());
  embedding_ = costs_of(first, embedding_operations(first, kRank),
                        embedding_communication(first, kRank).both(), machine);
  // What the head saves is live only until its own backward, and so among the buffers.
  head_ = costs_of(last, head_operations(last, kRank), head_communication(last, kRank).both(), machine);
  add_parameters(embedding_, of_first);
  add_parameters(head_, of_last);
  subtract_parameters(embedding_, block_.at(kinds_.front()));
  subtract_parameters(head_, block_.at(kinds_.back()));
  if (!config_.tie_word_embeddings) return;
  tied_parameters_ = of_first.embedding;
  is_tied_trained_ = of_first.is_embedding_trained;
}

LayerCosts MicroBatchCosts::of_stage(const base::Range& blocks) const {
  LayerCosts sum;
  for (int64_t layer = blocks.begin; layer < blocks.end; ++layer) sum += block_.at(kinds_[layer]);
  if (is_first(blocks)) sum += embedding_;
  if (is_last(blocks)) sum += head_;
  // A tied head is the embedding if both are on one stage.
  if (is_first(blocks) && is_last(blocks)) {
    sum.parameters -= tied_parameters_;
    sum.trained_parameters -= trained_tied_parameters();
  }
  return sum;
}

bool MicroBatchCosts::sends_gradients(const base::Range& blocks) const {
  return kinds_[is_first(blocks) && !is_last(blocks) ? blocks.end : blocks.begin].has_input_gradient;
}

int64_t MicroBatchCosts::buffer_bytes(const base::Range& blocks) const {
  int64_t bytes = buffers_.inner;
  if (is_first(blocks)) bytes = std::max(bytes, buffers_.first);
  if (is_last(blocks)) bytes = std::max(bytes, buffers_.last);
  return bytes;
}

const LayerCosts& MicroBatchCosts::largest_block() const {
  const auto size = [](const auto& block) {
    return block.second.parameters + block.second.expert_parameters;
  };
  return std::ranges::max_element(block_, {}, size)->second;
}

}  // namespace shardwise::plan
