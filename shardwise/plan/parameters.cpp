#include "shardwise/plan/parameters.h"

#include "shardwise/config/tensors.h"

namespace shardwise::plan {
namespace {

using model::FullTensor;

/// Returns the number of KV heads that are replicated on several ranks.
int64_t count_replicated_heads(const base::Split& kv_heads) {
  int64_t count = 0;
  for (int64_t head = 0; head < kv_heads.size(); ++head) count += kv_heads.holders(head).size() > 1;
  return count;
}

/// The sharding rules of model/decoder, by the layer in a parameter's name.
class Sharding {
 public:
  Sharding(const Workload& workload, int rank)
      : workload_(workload),
        shard_(rank_shard(workload, rank)),
        replicated_kv_heads_(count_replicated_heads(workload.kv_heads())) {}

  LocalParameter local(const FullTensor& tensor) const {
    const bool is_trained = !workload_.frozen.contains(tensor.name);
    const auto [elements, partial] = shard_of(tensor);
    return {tensor.name, elements, is_trained ? partial : 0, is_trained};
  }

 private:
  struct Elements {
    int64_t local, partial;
  };

  Elements shard_of(const FullTensor& tensor) const {
    const int64_t numel = tensor.numel(), rows = tensor.shape[0], per_row = numel / rows;
    const auto is = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    const bool is_weight = tensor.name.ends_with(".weight");
    const int64_t d = workload_.config.head_dim;
    if (is("embed_tokens") || is("lm_head")) return {shard_.vocab * per_row, 0};
    if (is(".qkv_proj"))
      return {(shard_.heads + 2 * shard_.kv_heads) * d * per_row, 2 * replicated_kv_heads_ * d * per_row};
    if (is(".gate_up_proj")) return {2 * shard_.ffn * per_row, 0};
    if (is(".up_proj")) return {shard_.ffn * per_row, 0};
    if (is(".o_proj") && is_weight) return {rows * shard_.heads * d, 0};
    if (is(".down_proj") && is_weight) return {rows * shard_.ffn, 0};
    const bool is_per_head = is(".q_norm") || is(".k_norm");
    const bool is_partial = workload_.tp > 1 && (is_per_head || workload_.parallelism == Parallelism::tp_sp);
    return {numel, is_partial ? numel : 0};
  }

  const Workload& workload_;
  RankShard shard_;
  int64_t replicated_kv_heads_;
};

}  // namespace

std::vector<LocalParameter> local_parameters(const Workload& workload, int rank) {
  const Sharding sharding(workload, rank);
  std::vector<LocalParameter> parameters;
  for (const FullTensor& tensor : model::full_tensors(workload.config))
    parameters.push_back(sharding.local(tensor));
  return parameters;
}

}  // namespace shardwise::plan
