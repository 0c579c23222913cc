#include "shardwise/plan/inference_time.h"

#include <algorithm>
#include <cmath>

#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

constexpr int kFirstRank = 0;  // has the largest shard of everything
constexpr int64_t kIdBytes = 8;

/// Returns the config without routed experts, whose MLP is that of no block in particular.
config::Config dense_parts_of(config::Config config) {
  config.experts.reset();
  return config;
}

}  // namespace

base::Split stages_of(const config::Config& config, int64_t pp) {
  return base::Split::even("blocks", config.num_hidden_layers, static_cast<int>(pp));
}

InferenceTime::InferenceTime(const InferenceTask& task, const InferenceDegrees& degrees,
                             const StoredWeights& weights, const Machine& machine)
    : task_(task),
      weights_(weights),
      machine_(machine),
      degrees_(degrees),
      expert_ranks_{degrees.tp, degrees.ep},
      stages_(stages_of(task.config, degrees.pp)),
      dense_(config::dense(task.config)),
      outside_(dense_parts_of(dense_)),
      shard_(rank_shard(workload(outside_, 1, 1), kFirstRank)),
      time_(machine_, task.element_bytes),
      collectives_(machine_, {.ranks = degrees.tp}),
      exchanges_(machine_, {.ranks = expert_ranks_.replicas() > 1 ? degrees.ep : 1}) {}

Workload InferenceTime::workload(const config::Config& config, int64_t sequence_length,
                                 int64_t batch_size) const {
  Workload w;
  w.config = config;
  w.tp = static_cast<int>(degrees_.tp);
  w.parallelism = Parallelism::tp;
  w.sequence_length = sequence_length;
  w.batch_size = batch_size;
  w.element_bytes = task_.element_bytes;
  return w;
}

std::vector<ForwardTime> InferenceTime::stages(const GenerationForward& forward) const {
  const double from_memory = memory_share(forward);
  const Workload w = workload(outside_, /*sequence_length=*/1, forward.rows);
  const std::vector<BlockKind> kinds = kinds_of_blocks(workload(dense_, /*sequence_length=*/1, forward.rows));
  std::map<BlockKind, BlockTime> of_kind;
  for (const auto& [kind, layer] : layers_of_kinds(kinds)) of_kind[kind] = block(layer, forward, from_memory);
  const int64_t hidden = forward.rows * dense_.hidden_size * task_.element_bytes;
  const double of_block = collectives_.of(block_communication(w, kFirstRank, 0).forward);
  std::vector<ForwardTime> all(degrees_.pp);
  for (const Operation& one : embedding_operations(w, kFirstRank)) all[0].compute += elementwise(one);
  all[0].tensor_parallel = collectives_.of(embedding_communication(w, kFirstRank).forward);
  for (int64_t stage = 0; stage < degrees_.pp; ++stage) {
    ForwardTime& time = all[stage];
    const base::Range blocks = stages_.range(static_cast<int>(stage));
    for (int64_t layer = blocks.begin; layer < blocks.end; ++layer) {
      const BlockTime& block = of_kind.at(kinds[layer]);
      for (const double seconds : block.operations) time.compute += seconds;
      time.expert_parallel += block.exchanges;
    }
    time.tensor_parallel += static_cast<double>(blocks.size()) * of_block;
    if (stage + 1 < degrees_.pp) time.pipeline = message(stage, stage + 1, hidden);
  }
  return all;
}

InferenceTime::BlockTime InferenceTime::block(int64_t layer, const GenerationForward& forward,
                                              double from_memory) const {
  BlockTime time;
  const bool has_experts = dense_.has_experts(layer);
  if (const auto& measured = machine_.inference) {
    const int64_t texts = forward.cached_keys > 0 ? forward.rows : 1;
    time.operations.push_back(measured->seconds_per_block +
                              static_cast<double>(texts) * measured->seconds_per_text);
  }
  const Workload w = workload(without_experts(dense_, layer), /*sequence_length=*/1, forward.rows);
  const ReadShares read{.memory = from_memory};
  for (const Operation& one : block_operations(w, kFirstRank, 0, CountedKeys::all)) {
    if (one.kind == Operation::Kind::attention) {
      time.operations.push_back(attention(layer, forward, from_memory));
    } else if (one.kind == Operation::Kind::product) {
      time.operations.push_back(product(one, weights_.of_product(has_experts, one.name), read));
    } else {
      time.operations.push_back(elementwise(one));
    }
  }
  if (has_experts) add_experts(time, forward, from_memory);
  return time;
}

/// Of the experts' weights those are read that some row chooses.
void InferenceTime::add_experts(BlockTime& block, const GenerationForward& forward,
                                double from_memory) const {
  // Quantization limits how an expert is split.
  const RoutedExperts experts = routed_experts(task_.config, expert_ranks_, forward.rows);
  for (const Operation& one : routed_operations(dense_, experts, forward.rows, task_.element_bytes)) {
    if (one.kind != Operation::Kind::product) {
      block.operations.push_back(elementwise(one));
      continue;
    }
    const ReadShares read{one.name == "router" ? 1 : experts.read, from_memory};
    block.operations.push_back(product(one, weights_.of_product(/*has_experts=*/true, one.name), read));
  }
  const int64_t row = dense_.hidden_size * task_.element_bytes;
  if (expert_ranks_.replicas() > 1)
    block.exchanges = 2 * exchanges_.all_to_all(experts.sent_rows * static_cast<double>(row));
}

double InferenceTime::attention(int64_t layer, const GenerationForward& forward, double from_memory) const {
  if (forward.cached_keys > 0) return cached_attention(layer, forward, from_memory);
  return prompt_attention(layer) * static_cast<double>(forward.texts) / forward.forwards;
}

/// A text's own queries and keys, as one forward of its prompt.
double InferenceTime::prompt_attention(int64_t layer) const {
  const Workload prompt = workload(without_experts(dense_, layer), task_.prompt_tokens, 1);
  double seconds = projections_again(layer);
  for (const Operation& one : block_operations(prompt, kFirstRank, layer, CountedKeys::visible))
    if (one.kind == Operation::Kind::attention) seconds += time_.inference(one, one.forward.bytes);
  return seconds;
}

/// Keys and values of a prompt's rows are projected from latents. Those of the rows of earlier forwards are
/// not kept, but projected again: 512 of them in the second forward, 1024 in the third.
double InferenceTime::projections_again(int64_t layer) const {
  const int64_t forwards = parts_of(task_.prompt_tokens, kPromptRows);
  if (!dense_.latent_attention || forwards == 1) return 0;
  const int64_t rows = kPromptRows * (forwards * (forwards - 1) / 2);
  const Workload again = workload(without_experts(dense_, layer), /*sequence_length=*/1, rows);
  double seconds = 0;
  for (const Operation& one : block_operations(again, kFirstRank, 0, CountedKeys::all))
    if (one.name == "kv_b_proj")
      seconds += product(one, weights_.of_product(dense_.has_experts(layer), one.name), {});
  return seconds;
}

/// One query of each text: two products with its keys and values. Latents are read in place of both, by
/// queries that are projected to their size (DeepSeek-V2, arXiv 2405.04434, section 2.1.2); this and the way
/// back read the weights, and have the FLOP, of the projection of one key and value.
double InferenceTime::cached_attention(int64_t layer, const GenerationForward& forward,
                                       double from_memory) const {
  const auto& latent = dense_.latent_attention;
  const int64_t features = latent ? latent->cached_features() + latent->kv_lora_rank : 2 * dense_.head_dim,
                cached = latent ? latent->cached_features() : shard_.kv_heads * 2 * dense_.head_dim;
  const auto keys = static_cast<double>(forward.rows * keys_of(layer, forward));
  return time_.cached_attention(
      {.flop = 2 * static_cast<double>(shard_.heads * features) * keys,
       .elements = static_cast<double>(cached) * keys,
       .queries = static_cast<double>(shard_.heads) / static_cast<double>(latent ? 1 : shard_.kv_heads),
       .bytes = cached_bytes(layer, forward),
       .memory_share = from_memory});
}

int64_t InferenceTime::keys_of(int64_t layer, const GenerationForward& forward) const {
  return std::min(forward.cached_keys, dense_.window_of(layer).value_or(forward.cached_keys));
}

/// Keys and values, or latents, that a token of each text reads.
int64_t InferenceTime::cached_bytes(int64_t layer, const GenerationForward& forward) const {
  return forward.rows * keys_of(layer, forward) *
         cached_bytes_per_block(dense_, shard_.kv_heads, task_.element_bytes, task_.has_int8_cache);
}

/// Every forward reads the same weights, and the same cached keys and a few more. The stage that reads the
/// most counts.
double InferenceTime::memory_share(const GenerationForward& forward) const {
  if (!machine_.inference) return 1;
  int64_t most = 0;
  for (int stage = 0; stage < stages_.ranks(); ++stage) {
    const base::Range blocks = stages_.range(stage);
    int64_t bytes = weights_.read_by_stage(blocks);
    for (int64_t layer = blocks.begin; layer < blocks.end; ++layer) bytes += cached_bytes(layer, forward);
    most = std::max(most, bytes);
  }
  return machine_.inference->memory_share(static_cast<double>(most));
}

/// A weight is read as it is stored.
double InferenceTime::product(const Operation& operation, const StoredWeight& weight,
                              const ReadShares& read) const {
  const int64_t dense = operation.weight_elements * task_.element_bytes,
                stored = std::llround(read.of_weight * static_cast<double>(weight.bytes));
  return time_.inference(operation, operation.forward.bytes - dense + stored, {weight.bits, read.memory});
}

double InferenceTime::elementwise(const Operation& operation) const {
  return time_.inference(operation, operation.forward.bytes);
}

double InferenceTime::head(int64_t texts, const GenerationForward& forward) const {
  const ReadShares read{.memory = memory_share(forward)};
  double sum = 0;
  for (const Operation& one : head_operations(workload(outside_, 1, texts), kFirstRank)) {
    if (one.name == "cross_entropy") continue;
    sum += one.kind == Operation::Kind::product ? product(one, weights_.head(), read) : elementwise(one);
  }
  return sum;
}

double InferenceTime::ids(int64_t texts) const {
  return degrees_.pp == 1 ? 0 : message(0, degrees_.pp - 1, texts * kIdBytes);
}

/// Between two stages, in either direction. Every rank of a stage has all rows and sends them to the rank at
/// its place in the other one: within a node if both stages are in it.
double InferenceTime::message(int64_t first_stage, int64_t last_stage, int64_t bytes) const {
  const int64_t of_stage = std::max(degrees_.tp, degrees_.ep), per_node = machine_.devices_per_node;
  const int64_t first_rank = first_stage * of_stage, last_rank = (last_stage + 1) * of_stage - 1;
  const bool is_within = first_rank / per_node == last_rank / per_node;
  return CollectiveTime(machine_, {.ranks = 2, .stride = is_within ? 1 : per_node})
      .send(static_cast<double>(bytes));
}

}  // namespace shardwise::plan
