// What a backward holds: what the layers before have kept, and gradients on their way.
#include <algorithm>
#include <initializer_list>

#include "shardwise/plan/instants.h"
#include "shardwise/plan/passing.h"

namespace shardwise::plan {
namespace {

Entries without(Entries entries, std::initializer_list<const char*> freed) {
  std::erase_if(entries, [&](const Entry& entry) { return std::ranges::count(freed, entry.name) > 0; });
  return entries;
}

/// Recomputing in full holds the block's input whether its backward reads it or not.
Entries at_hand(const Workload& workload, int rank, int64_t layer) {
  Entries entries = read_by_block(workload, rank, layer);
  const Entry input = made_by_block(workload, rank, layer).front();
  const bool has_input = !entries.empty() && entries.front().name == input.name;
  if (workload.recompute == Recompute::full && !has_input) entries.insert(entries.begin(), input);
  return entries;
}

class BlockBackward {
 public:
  BlockBackward(const Workload& workload, int rank, int64_t layer)
      : passing_(workload, rank),
        wanted_(wanted_by_block(workload, layer)),
        is_recomputed_(workload.recompute == Recompute::full),
        in_down_(at_hand(workload, rank, layer)) {}

  Instants instants() const {
    Instants instants;
    append_mlp(instants);
    append_attention(instants);
    return instants;
  }

 private:
  const Sizes& sizes() const { return passing_.sizes(); }
  static void add(Instants& instants, const Wanted& layer, const char* name, const Entries& kept,
                  const Entries& alive) {
    if (layer.any) instants.push_back({name, both(kept, alive)});
  }

  void append_mlp(Instants& instants) const {
    const Entries in_activation = without(in_down_, {"down input"});
    const Entries in_mlp = without(in_activation, {"gate and up", "up"}),
                  in_norm = without(in_mlp, {"mlp input"});
    // Full recomputation holds the gradient that the block was called with to the end.
    const bool goes_past = wanted_.norm2.input || is_recomputed_;
    const Entries past = passing_.stream_gradient(goes_past);
    const int64_t inner = sizes().inner_features(), ffn = sizes().share().ffn;
    add(instants, wanted_.down, "down", in_down_, passing_.row_backward(ffn, wanted_.down, goes_past));
    add(instants, wanted_.activation, "activation", in_activation,
        both(past, {{"gradients of the activation", sizes().features(inner + ffn)}}));
    add(instants, wanted_.mlp, "mlp", in_mlp, both(past, passing_.column_backward(inner, wanted_.mlp)));
    add(instants, wanted_.norm2, "norm2", in_norm, both(past, passing_.norm_backward()));
  }

  void append_attention(Instants& instants) const {
    const Entries in_out = without(in_down_, {"down input", "gate and up", "up", "mlp input", "norm2 input",
                                              "norm2 rstd", "norm2 mean"});
    const Entries in_qkv = without(in_out, {"q", "k", "v", "attention output", "attention lse"});
    const Entries in_norm = without(in_qkv, {"qkv input"});
    const bool goes_past = wanted_.norm1.input;
    const Entries called_with = passing_.stream_gradient(is_recomputed_, "block's gradient");
    const Entries past = both(passing_.stream_gradient(goes_past), called_with);
    const int64_t qkv = sizes().qkv_features(), queries = sizes().query_features();
    add(instants, wanted_.out, "out", in_out,
        both(called_with, passing_.row_backward(queries, wanted_.out, goes_past)));
    add(instants, wanted_.attention, "attention", in_out,
        both(past, {{"gradients of attention", sizes().features(queries + 2 * qkv)}}));
    add(instants, wanted_.qkv, "qkv", in_qkv, both(past, passing_.column_backward(qkv, wanted_.qkv)));
    add(instants, wanted_.norm1, "norm1", in_norm, both(past, passing_.norm_backward()));
  }

  Passing passing_;
  WantedByBlock wanted_;
  bool is_recomputed_;
  Entries in_down_;
};

}  // namespace

Instants backward_instants(const Workload& workload, int rank, int64_t layer) {
  return BlockBackward(workload, rank, layer).instants();
}

Instants head_backward_instants(const Workload& workload, int rank) {
  const Passing passing(workload, rank);
  const Entries in_loss = saved_by_head(workload, rank);
  const Entries in_head = without(in_loss, {"logits", "labels", "loss lse"});
  const int64_t vocab = passing.sizes().share().vocab;
  const auto [norm, head] = wanted_by_head(workload);
  Instants instants = {{"loss", both(in_loss, {{"gradient of logits", passing.sizes().features(vocab)}})},
                       {"head", both(in_head, passing.column_backward(vocab, head))}};
  if (norm.any) instants.push_back({"norm", both(without(in_head, {"head input"}), passing.norm_backward())});
  return instants;
}

}  // namespace shardwise::plan
