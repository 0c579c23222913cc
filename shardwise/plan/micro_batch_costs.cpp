#include "shardwise/plan/micro_batch_costs.h"

#include <algorithm>

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/memory.h"
#include "shardwise/plan/operation_time.h"
#include "shardwise/plan/parameters.h"
#include "shardwise/plan/peak.h"

namespace shardwise::plan {
namespace {

constexpr int kRank = 0;  // has the largest shard of everything

/// The model of three blocks with the attention of `layer`.
Workload three_blocks(Workload workload, int64_t layer) {
  config::Config& c = workload.config;
  const std::optional<int64_t> window = c.window_of(layer);
  c.num_hidden_layers = 3;
  c.sliding_window = window;
  c.sliding_layers.clear();
  return workload;
}

Workload with_block(Workload workload, int64_t block) {
  workload.stage = base::Range{block, block + 1};
  return workload;
}

LayerCosts costs_of(const Workload& workload, const Operations& operations, const Collectives& collectives,
                    int64_t saved_bytes, const Machine& machine) {
  const OperationTime time(machine, workload.element_bytes);
  LayerCosts costs;
  for (const Operation& one : operations) {
    costs.forward += time.forward(one);
    costs.backward += time.backward(one);
  }
  costs.tensor_parallel = CollectiveTime(machine, {.ranks = workload.tp}).of(collectives);
  costs.saved_bytes = saved_bytes;
  return costs;
}

int64_t parameters_of(const Workload& workload) {
  int64_t elements = 0;
  for (const LocalParameter& parameter : local_parameters(workload, kRank)) elements += parameter.elements;
  return elements;
}

/// Returns the bytes beside states and the block's saved tensors at the peak of a stage of one block.
int64_t buffers_of(const Workload& workload) {
  const Peak peak = training_peak(workload, kRank);
  const int64_t saved = total(saved_by_block(workload, kRank, workload.blocks().begin));
  return std::max<int64_t>(peak.bytes() - total(peak.states) - saved, 0);
}

}  // namespace

LayerCosts& LayerCosts::operator+=(const LayerCosts& layer) {
  forward += layer.forward;
  backward += layer.backward;
  tensor_parallel += layer.tensor_parallel;
  saved_bytes += layer.saved_bytes;
  parameters += layer.parameters;
  return *this;
}

MicroBatchCosts::MicroBatchCosts(const Workload& workload, const Machine& machine)
    : config_(workload.config) {
  workload.validate();
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    const Window window = config_.window_of(layer);
    if (block_.contains(window)) continue;
    const Workload one = with_block(three_blocks(workload, layer), 1);
    block_[window] =
        costs_of(one, block_operations(one, kRank, 1, CountedKeys::visible),
                 block_communication(one, kRank, 1).both(), total(saved_by_block(one, kRank, 1)), machine);
    block_[window].parameters = parameters_of(one);
  }
  const Workload first = with_block(three_blocks(workload, 0), 0), inner = with_block(first, 1),
                 last = with_block(first, 2);
  embedding_ =
      costs_of(first, embedding_operations(first, kRank), embedding_communication(first, kRank).both(),
               /*saved_bytes=*/0, machine);
  // What the head saves is live only until its own backward, and so among the buffers.
  head_ = costs_of(last, head_operations(last, kRank), head_communication(last, kRank).both(),
                   /*saved_bytes=*/0, machine);
  embedding_.parameters = parameters_of(first) - block_parameters();
  head_.parameters = parameters_of(last) - block_parameters();
  if (config_.tie_word_embeddings)
    tied_parameters_ = embedding_.parameters + head_.parameters + 3 * block_parameters() -
                       parameters_of(three_blocks(workload, 0));
  embedding_buffers_ = buffers_of(first);
  block_buffers_ = buffers_of(inner);
  head_buffers_ = buffers_of(last);
}

LayerCosts MicroBatchCosts::of_stage(const base::Range& blocks) const {
  LayerCosts sum;
  for (int64_t layer = blocks.begin; layer < blocks.end; ++layer) sum += block_.at(config_.window_of(layer));
  if (is_first(blocks)) sum += embedding_;
  if (is_last(blocks)) sum += head_;
  // A tied head is the embedding if both are on one stage.
  if (is_first(blocks) && is_last(blocks) && config_.tie_word_embeddings) sum.parameters -= tied_parameters_;
  return sum;
}

int64_t MicroBatchCosts::buffer_bytes(const base::Range& blocks) const {
  int64_t bytes = block_buffers_;
  if (is_first(blocks)) bytes = std::max(bytes, embedding_buffers_);
  if (is_last(blocks)) bytes = std::max(bytes, head_buffers_);
  return bytes;
}

}  // namespace shardwise::plan
