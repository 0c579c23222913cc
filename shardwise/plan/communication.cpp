#include "shardwise/plan/communication.h"

#include <algorithm>
#include <map>
#include <vector>

#include "shardwise/base/loss_chunks.h"
#include "shardwise/base/part_buffers.h"
#include "shardwise/base/weight_gradient_rows.h"
#include "shardwise/plan/parameters.h"
#include "shardwise/plan/required_gradients.h"

namespace shardwise::plan {
namespace {

/// An all_reduce over `ranks` ranks, of which this is number `rank`.
Collectives all_reduce_over(int ranks, int rank, int64_t elements, int64_t element_bytes) {
  Collectives one;
  if (ranks == 1) return one;
  const int64_t local = base::Split::even("message", elements, ranks).range(rank).size();
  one.all_reduce = {1, (local * (ranks - 1) + elements - local) * element_bytes};
  return one;
}

/// The bytes that one rank sends in each collective.
class Costs {
 public:
  Costs(const Workload& workload, int rank)
      : workload_(workload), rank_(rank), shard_(rank_shard(workload, rank)) {}

  Collectives all_reduce(int64_t elements, int64_t element_bytes) const {
    return all_reduce_over(workload_.tp, rank_, elements, element_bytes);
  }
  /// Gathers the sequence shards of rows of `features`.
  Collectives all_gather(int64_t features) const {
    return once(&Collectives::all_gather, shard_.residual_rows * row_bytes(features) * (workload_.tp - 1));
  }
  Collectives reduce_scatter(int64_t features) const {
    return once(&Collectives::reduce_scatter, (shard_.rows - shard_.residual_rows) * row_bytes(features));
  }

  /// `features`: of the layer's input.
  Passes column(const RequiredGradients& required, int64_t features) const {
    if (is_tp()) return {{}, when(required.input, all_reduce_rows(features))};
    const bool gathers = required.weight && workload_.column_input_storage != ColumnInputStorage::gathered;
    return {all_gather(features),
            when(gathers, all_gather(features)) + when(required.input, reduce_scatter(features))};
  }
  /// The head's gradients are computed, and that of its input is reduced, in the forward.
  Collectives loss(const RequiredGradients& head) const {
    const Collectives reduction =
        when(head.input, is_tp() ? all_reduce_rows(hidden()) : reduce_scatter(hidden()));
    return (is_tp() ? Collectives{} : all_gather(hidden())) + loss_terms() + reduction;
  }
  Passes row(const RequiredGradients& required) const {
    if (is_tp()) return {all_reduce_rows(hidden()), {}};
    return {reduce_scatter(hidden()), when(required.input || required.weight, all_gather(hidden()))};
  }
  int64_t hidden() const { return workload_.config.hidden_size; }

 private:
  bool is_tp() const { return workload_.parallelism == Parallelism::tp; }
  static Collectives when(bool happens, const Collectives& one) { return happens ? one : Collectives{}; }
  Collectives once(Traffic Collectives::*kind, int64_t bytes) const {
    Collectives one;
    if (workload_.tp > 1) one.*kind = {1, bytes};
    return one;
  }
  int64_t row_bytes(int64_t features) const { return features * workload_.element_bytes; }
  Collectives all_reduce_rows(int64_t features) const {
    return all_reduce(shard_.rows * features, workload_.element_bytes);
  }

  /// One all_gather for each chunk of rows.
  Collectives loss_terms() const {
    if (workload_.tp == 1) return {};
    const int64_t terms = workload_.has_label_smoothing ? 4 : 3;  // maximum, Σ exp, target, Σ logits
    Collectives sent;
    for (const int64_t rows : blocks_of_rows()) {
      sent.all_gather.calls += base::loss_chunk_count(rows);
      sent.all_gather.bytes += rows * terms * workload_.accumulator_bytes() * (workload_.tp - 1);
    }
    return sent;
  }
  /// Rows whose head input is one matrix: all, or those of each run of ranks.
  std::vector<int64_t> blocks_of_rows() const {
    if (is_tp()) return {shard_.rows};
    std::vector<int64_t> rows;
    const base::Split sequence = workload_.sequence();
    for (const base::Range& ranks : base::weight_gradient_ranks(sequence, workload_.batch_size))
      rows.push_back(base::indices_of(sequence, ranks).size() * workload_.batch_size);
    return rows;
  }

  const Workload& workload_;
  int rank_;
  RankShard shard_;
};

Traffic operator+(const Traffic& a, const Traffic& b) {
  return {a.calls + b.calls, a.bytes + b.bytes};
}
Traffic operator*(int64_t times, const Traffic& one) {
  return {times * one.calls, times * one.bytes};
}
Passes operator+(const Passes& a, const Passes& b) {
  return {a.forward + b.forward, a.backward + b.backward};
}

/// Returns the features that column-parallel attention reads.
int64_t attention_input(const config::Config& config) {
  const auto& latent = config.latent_attention;
  return latent ? latent->q_lora_rank + latent->cached_features() : config.hidden_size;
}

}  // namespace

Traffic Collectives::total() const {
  return all_reduce + all_gather + reduce_scatter + broadcast;
}

Collectives operator+(const Collectives& a, const Collectives& b) {
  return {a.all_reduce + b.all_reduce, a.all_gather + b.all_gather, a.reduce_scatter + b.reduce_scatter,
          a.broadcast + b.broadcast};
}

Collectives operator*(int64_t times, const Collectives& one) {
  return {times * one.all_reduce, times * one.all_gather, times * one.reduce_scatter, times * one.broadcast};
}

Passes embedding_communication(const Workload& workload, int rank) {
  return Costs(workload, rank).row(workload.required_by_embedding());
}

Passes block_communication(const Workload& workload, int rank, int64_t layer) {
  if (workload.split_batch)
    return block_communication(workload.half_batch(0), rank, layer) +
           block_communication(workload.half_batch(1), rank, layer);
  const LayerPasses of = layer_communication(workload, rank, layer);
  const Passes without_down = of.qkv + of.out + of.up;
  Passes passes = without_down + of.down;
  // Backward repeats the forward except its last reduction.
  if (workload.recompute == Recompute::full && workload.required_by_block(layer).any())
    passes.backward = without_down.forward + passes.backward;
  return passes;
}

LayerPasses layer_communication(const Workload& workload, int rank, int64_t layer) {
  const Costs costs(workload, rank);
  const RequiredByBlock required = workload.required_by_block(layer);
  LayerPasses passes{
      costs.column(required.qkv, attention_input(workload.config)), costs.row(required.out), {}, {}};
  if (workload.config.mlp_size(layer) == 0) return passes;
  passes.up = costs.column(required.mlp, costs.hidden());
  passes.down = costs.row(required.down);
  return passes;
}

Passes mlp_communication(const Workload& workload, int rank, int64_t layer) {
  const Costs costs(workload, rank);
  const RequiredByBlock required = workload.required_by_block(layer);
  return costs.column(required.mlp, costs.hidden()) + costs.row(required.down);
}

Passes head_communication(const Workload& workload, int rank) {
  return {Costs(workload, rank).loss(workload.required_by_head().head), {}};
}

Passes micro_batch_communication(const Workload& workload, int rank) {
  Passes passes;
  if (workload.has_embedding()) passes = passes + embedding_communication(workload, rank);
  for (const Workload& chunk : workload.chunks())
    for (int64_t layer = chunk.blocks().begin; layer < chunk.blocks().end; ++layer)
      passes = passes + block_communication(workload, rank, layer);
  if (workload.has_head()) passes = passes + head_communication(workload, rank);
  return passes;
}

int64_t synchronized_elements(const Workload& workload) {
  int64_t elements = 0;
  for (const LocalParameter& parameter : local_parameters(workload, /*rank=*/0))
    elements += parameter.synchronized;
  return elements;
}

namespace {

/// Sums the gradients that are partial sums of all trained parameters, or of each part in a micro-batch.
Collectives partial_sums(const Workload& workload, int rank, int64_t micro_batches) {
  const Costs costs(workload, rank);
  std::map<int64_t, int64_t> elements;  // by part
  for (const LocalParameter& parameter : local_parameters(workload, /*rank=*/0))
    if (parameter.synchronized > 0) elements[parameter.part] += parameter.synchronized;
  if (elements.empty()) return {};
  if (workload.zero < ZeroStage::gradients)
    return costs.all_reduce(synchronized_elements(workload), workload.accumulator_bytes());
  Collectives sums;
  for (const auto& [part, count] : elements)
    sums = sums + costs.all_reduce(count, workload.accumulator_bytes());
  return micro_batches * sums;
}

}  // namespace

Collectives optimizer_communication(const Workload& workload, int rank, int replica, int64_t micro_batches) {
  return partial_sums(workload, rank, micro_batches) + norm_communication(workload, rank, replica);
}

Collectives norm_communication(const Workload& workload, int rank, int replica) {
  const int world = workload.pp * workload.dp * workload.tp;
  const int world_rank = (workload.stage_index * workload.dp + replica) * workload.tp + rank;
  return all_reduce_over(world, world_rank, 1, /*element_bytes=*/8);
}

Collectives loss_communication(const Workload& workload, int replica) {
  return all_reduce_over(workload.pp * workload.dp, workload.stage_index * workload.dp + replica, 1,
                         /*element_bytes=*/8);
}

namespace {

/// Gives every copy of the weights the updated rows of a part: FlatWeights.
Collectives published_weights(const Workload& workload, const base::Split& owners, int replica) {
  const int per_copy = workload.replicas_per_copy, copies = workload.dp / per_copy;
  const int64_t bytes = owners.range(replica).size() * (copies - 1) * workload.element_bytes;
  Collectives published;
  if (copies == 1) return published;
  if (per_copy == 1) published.all_gather = {1, bytes};
  for (int copy = 0; per_copy > 1 && copy < copies; ++copy)
    if (!owners.range(copy * per_copy + replica % per_copy).empty()) ++published.broadcast.calls;
  published.broadcast.bytes = per_copy > 1 ? bytes : 0;
  return published;
}

/// Returns how often a step gathers each part: forwards read all, backwards those from the last but one to
/// the first that backward needs, and what is still in its buffer is not gathered.
std::vector<int64_t> gathers_of_parts(const Workload& workload, int64_t rounds) {
  int64_t first = workload.parts();
  for (const LocalParameter& parameter : local_parameters(workload, /*rank=*/0))
    if (parameter.is_trained) first = std::min(first, parameter.part);
  base::PartBuffers buffers(workload.config.tie_word_embeddings);
  std::vector<int64_t> gathers(static_cast<size_t>(workload.parts()));
  const auto read = [&](int64_t part) {
    if (buffers.assign(size_t(part))) ++gathers[size_t(part)];
  };
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t part = 0; part < workload.parts(); ++part) read(part);
    for (int64_t part = workload.parts() - 2; part >= std::max<int64_t>(1, first); --part) read(part);
  }
  return gathers;
}

/// Gathers the weights of the parts before they are used: parallel::ShardedWeights.
Collectives gathered_weights(const Workload& workload, int rank, int replica, int64_t rounds) {
  const std::vector<int64_t> gathers = gathers_of_parts(workload, rounds);
  Collectives all;
  for (const auto& parts : {owned_by_replicas(workload, rank), frozen_by_replicas(workload, rank)}) {
    for (size_t part = 0; part < parts.size(); ++part) {
      const int64_t bytes = parts[part].range(replica).size() * (workload.dp - 1) * workload.element_bytes;
      if (parts[part].size() > 0) all = all + gathers[part] * Collectives{.all_gather = {1, bytes}};
    }
  }
  return all;
}

}  // namespace

Collectives replica_communication(const Workload& workload, int rank, int replica, int64_t rounds) {
  const int64_t sums = workload.zero >= ZeroStage::gradients ? rounds : 1;
  Collectives all = loss_communication(workload, replica);
  if (workload.dp == 1) return all;
  for (const base::Split& owners : owned_by_replicas(workload, rank)) {
    const int64_t elements = owners.size(), own = owners.range(replica).size();
    if (elements == 0) continue;
    if (workload.zero == ZeroStage::none)
      return all + all_reduce_over(workload.dp, replica, elements, workload.accumulator_bytes());
    Collectives part;
    part.reduce_scatter = {sums, sums * (elements - own) * workload.accumulator_bytes()};
    all = all + part;
    if (workload.zero != ZeroStage::weights) all = all + published_weights(workload, owners, replica);
  }
  if (workload.zero == ZeroStage::weights) all = all + gathered_weights(workload, rank, replica, rounds);
  return all;
}

namespace {

/// Returns true if the embedding, or a block before the first of the workload, is trained.
bool is_trained_before(const Workload& workload) {
  for (const config::ParameterInfo& parameter : config::ParameterTable(workload.config, workload.layout()))
    if (part_of(parameter, workload) <= workload.blocks().begin && !workload.frozen.contains(parameter.name))
      return true;
  return false;
}

}  // namespace

StageMessages stage_messages(const Workload& workload, int rank, int64_t micro_batches) {
  StageMessages messages;
  const auto send = [&](int64_t count, int64_t elements, int64_t element_bytes) {
    messages.sent.calls += count;
    messages.sent.bytes += count * elements * element_bytes;
    messages.largest_bytes = std::max(messages.largest_bytes, elements * element_bytes);
  };
  if (workload.pp == 1) return messages;
  const int64_t stream = rank_shard(workload, rank).residual_rows * workload.config.hidden_size;
  for (const Workload& chunk : workload.chunks()) {
    if (!chunk.has_head()) send(micro_batches, stream, workload.element_bytes);
    if (!chunk.has_embedding() && is_trained_before(chunk))
      send(micro_batches, stream, workload.element_bytes);
  }
  const bool is_trained = !workload.frozen.contains("model.embed_tokens.weight");
  if (!workload.config.tie_word_embeddings || !is_trained) return messages;
  const int64_t tied = workload.layout().vocab.range(rank).size() * workload.config.hidden_size;
  if (workload.has_head()) send(1, tied, workload.accumulator_bytes());
  if (workload.has_embedding()) send(1, tied, workload.element_bytes);
  return messages;
}

}  // namespace shardwise::plan
