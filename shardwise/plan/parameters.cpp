#include "shardwise/plan/parameters.h"

#include "shardwise/model/config_tensors.h"

namespace shardwise::plan {
namespace {

using model::WholeTensor;

/// KV heads that several ranks hold.
int64_t heads_held_by_several(const base::Split& kv_heads) {
  int64_t count = 0;
  for (int64_t head = 0; head < kv_heads.size(); ++head) count += kv_heads.holders(head).size() > 1;
  return count;
}

/// The rules of model/decoder, by the layer that a name ends in.
class Cuts {
 public:
  Cuts(const Workload& workload, int rank)
      : workload_(workload),
        share_(share_of(workload, rank)),
        shared_kv_(heads_held_by_several(workload.kv_heads())) {}

  HeldParameter held(const WholeTensor& tensor) const {
    const bool is_trained = !workload_.frozen.contains(tensor.name);
    const auto [elements, terms] = slice_of(tensor);
    return {tensor.name, elements, is_trained ? terms : 0, is_trained};
  }

 private:
  struct Slice {
    int64_t elements, terms;
  };

  Slice slice_of(const WholeTensor& tensor) const {
    const int64_t numel = tensor.numel(), rows = tensor.shape[0], per_row = numel / rows;
    const auto is = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    const bool is_weight = tensor.name.ends_with(".weight");
    const int64_t d = workload_.config.head_dim;
    if (is("embed_tokens") || is("lm_head")) return {share_.vocab * per_row, 0};
    if (is(".qkv_proj"))
      return {(share_.heads + 2 * share_.kv_heads) * d * per_row, 2 * shared_kv_ * d * per_row};
    if (is(".gate_up_proj")) return {2 * share_.ffn * per_row, 0};
    if (is(".up_proj")) return {share_.ffn * per_row, 0};
    if (is(".o_proj") && is_weight) return {rows * share_.heads * d, 0};
    if (is(".down_proj") && is_weight) return {rows * share_.ffn, 0};
    const bool is_on_own_heads = is(".q_norm") || is(".k_norm");
    const bool is_term = workload_.tp > 1 && (is_on_own_heads || workload_.stream == Stream::tp_sp);
    return {numel, is_term ? numel : 0};
  }

  const Workload& workload_;
  Share share_;
  int64_t shared_kv_;
};

}  // namespace

std::vector<HeldParameter> held_parameters(const Workload& workload, int rank) {
  const Cuts cuts(workload, rank);
  std::vector<HeldParameter> held;
  for (const WholeTensor& tensor : model::whole_tensors(workload.config)) held.push_back(cuts.held(tensor));
  return held;
}

}  // namespace shardwise::plan
