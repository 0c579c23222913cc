// What a forward holds: what is kept for backward, and every value of a C++ expression until the expression
// ends, a norm's output until the sum that its layers lead to.
#include <set>

#include "shardwise/plan/instants.h"
#include "shardwise/plan/passing.h"

namespace shardwise::plan {
namespace {

using Names = std::set<std::string>;

Names names_of(const Entries& entries) {
  Names names;
  for (const Entry& entry : entries) names.insert(entry.name);
  return names;
}

/// What is made up to `last`, as far as it is kept or held.
Entries alive(const Entries& made, const std::string& last, const Names& kept, const Names& held) {
  Entries entries;
  for (const Entry& entry : made) {
    if (kept.contains(entry.name) || held.contains(entry.name)) entries.push_back(entry);
    if (entry.name == last) break;
  }
  return entries;
}

Names kept_by_block(const Workload& workload, int rank, int64_t layer, Run run) {
  if (run == Run::again) return names_of(read_by_block(workload, rank, layer));
  if (workload.recompute == Recompute::full) return {};  // its input is held in any case
  return names_of(saved_by_block(workload, rank, layer));
}

class BlockForward {
 public:
  BlockForward(const Workload& workload, int rank, int64_t layer, Run run)
      : passing_(workload, rank),
        made_(made_by_block(workload, rank, layer)),
        kept_(kept_by_block(workload, rank, layer, run)),
        has_qk_norm_(workload.config.qk_norm),
        holds_input_(run == Run::again || workload.recompute == Recompute::full),
        run_(run) {}

  Instants instants() const {
    // Again, the value of the last product is not used: it is neither summed nor masked.
    const bool is_used = run_ == Run::first;
    const Entries unused = {{"unused value", sizes().stream()}};
    return {
        instant("attention core",
                {attention_until("attention lse", {"q", "k", "v", "attention output", "attention lse"}),
                 {{"q and k, normed", normed_bytes()}}}),
        instant("out", {attention_until("attention lse", {"attention output"}), passing_.row_forward()}),
        instant("attention's sum",
                {attention_until("norm2 input", {"attention output", "norm2 input"}), passing_.summed()}),
        instant("down",
                {mlp({"gate and up", "up", "down input"}), is_used ? passing_.row_forward() : unused}),
        instant("mlp's sum",
                {mlp({}), is_used ? passing_.summed() : unused, {{"block's output", sizes().stream()}}}),
    };
  }

 private:
  const Sizes& sizes() const { return passing_.sizes(); }
  int64_t normed_bytes() const {
    return has_qk_norm_ ? sizes().features(sizes().query_features() + sizes().key_features()) : 0;
  }

  /// The product q|k|v is held; with q/k norm it is itself what q, k and v stand for.
  Entries attention_until(const std::string& last, Names held) const {
    held.insert({"norm1 input", "qkv input"});
    if (has_qk_norm_) held.insert({"q", "k", "v"});
    const int64_t product = has_qk_norm_ ? 0 : sizes().features(sizes().qkv_features());
    return both(alive(made_, last, kept_, held), {{"q|k|v", product}});
  }
  Entries mlp(Names held) const {
    held.insert({"norm2 input", "mlp input"});
    if (holds_input_) held.insert("norm1 input");
    return alive(made_, "down input", kept_, held);
  }

  /// Run again, it has the gradient that the block was called with beside it.
  Instant instant(const std::string& name, const std::vector<Entries>& parts) const {
    Instant instant{name + (run_ == Run::first ? ", forward" : ", again"), {}};
    for (const Entries& part : parts) instant.entries = both(std::move(instant.entries), part);
    if (run_ == Run::again) instant.entries.push_back({"block's gradient", sizes().stream()});
    return instant;
  }

  Passing passing_;
  Entries made_;
  Names kept_;
  bool has_qk_norm_;
  bool holds_input_;  // while the block runs, and not only until its first sum
  Run run_;
};

}  // namespace

Instants forward_instants(const Workload& workload, int rank, int64_t layer, Run run) {
  return BlockForward(workload, rank, layer, run).instants();
}

Instants head_forward_instants(const Workload& workload, int rank) {
  const Names kept = names_of(saved_by_head(workload, rank));
  return {{"head, forward",
           alive(made_by_head(workload, rank), "logits", kept, {"norm input", "head input", "logits"})}};
}

}  // namespace shardwise::plan
