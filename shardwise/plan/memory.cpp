#include "shardwise/plan/memory.h"

#include <utility>

#include "shardwise/plan/parameters.h"
#include "shardwise/plan/sizes.h"
#include "shardwise/plan/wanted.h"

namespace shardwise::plan {
namespace {

constexpr int64_t kLabelBytes = 8;  // int64

/// What may be kept, and whether a wanted gradient needs it.
struct Candidate {
  Entry entry;
  bool is_read;
};
using Candidates = std::vector<Candidate>;

Entries made(const Candidates& candidates) {
  Entries entries;
  for (const Candidate& candidate : candidates) entries.push_back(candidate.entry);
  return entries;
}

Entries read(const Candidates& candidates) {
  Entries entries;
  for (const auto& [entry, is_read] : candidates) {
    if (is_read) entries.push_back(entry);
  }
  return entries;
}

/// Builds the lists.
class Tensors {
 public:
  Tensors(const Workload& workload, int rank) : workload_(workload), sizes_(workload, rank) {}

  void add(const std::string& name, int64_t bytes, bool is_read) { add({name, bytes}, is_read); }
  void add(const Entry& entry, bool is_read) { list_.push_back({entry, is_read}); }

  /// A norm keeps its input and one number per row, LayerNorm two.
  void add_norm(const std::string& name, Pool input_pool, const Wanted& wanted) {
    const int64_t statistic = sizes_.statistics(sizes_.share().stream_rows);
    add({name + " input", sizes_.stream(), input_pool}, wanted.any);
    add(name + " rstd", statistic, wanted.any);
    if (workload_.config.norm == model::Norm::layer) add(name + " mean", statistic, wanted.any);
  }
  void add_column_input(const std::string& name, const Wanted& wanted) {
    const bool is_whole = workload_.save_for_backward == SaveForBackward::gathered;
    add({name, is_whole ? sizes_.whole() : sizes_.stream(), workload_.column_input_pool()}, wanted.weight);
  }

  const Sizes& sizes() const { return sizes_; }
  Candidates take() { return std::move(list_); }

 private:
  const Workload& workload_;
  Sizes sizes_;
  Candidates list_;
};

Candidates block_candidates(const Workload& workload, int rank, int64_t layer) {
  Tensors tensors(workload, rank);
  const WantedByBlock wanted = wanted_by_block(workload, layer);
  const Sizes& sizes = tensors.sizes();
  const int64_t queries = sizes.features(sizes.query_features()), keys = sizes.features(sizes.key_features());
  const bool attends = wanted.attention.any;
  tensors.add_norm("norm1", workload.block_input_pool(layer), wanted.norm1);
  tensors.add_column_input("qkv input", wanted.qkv);
  tensors.add("q", queries, attends);  // with q/k norm as they are before it
  tensors.add("k", keys, attends);
  tensors.add("v", keys, attends);
  tensors.add("attention output", queries,
              attends || wanted.out.weight);  // the output projection's input, too
  tensors.add("attention lse", sizes.share().heads * sizes.statistics(sizes.share().rows), attends);
  tensors.add_norm("norm2", Pool::own, wanted.norm2);
  tensors.add_column_input("mlp input", wanted.mlp);
  tensors.add(workload.config.is_gated() ? "gate and up" : "up", sizes.features(sizes.inner_features()),
              wanted.activation.any);
  tensors.add("down input", sizes.features(sizes.share().ffn), wanted.down.weight);
  return tensors.take();
}

Candidates head_candidates(const Workload& workload, int rank) {
  Tensors tensors(workload, rank);
  const auto [norm, head] = wanted_by_head(workload);
  const Sizes& sizes = tensors.sizes();
  tensors.add_norm("norm", Pool::own, norm);
  tensors.add_column_input("head input", head);
  tensors.add("logits", sizes.features(sizes.share().vocab), head.any);
  if (workload.is_padded) tensors.add("labels", sizes.share().rows * kLabelBytes, head.any);
  tensors.add("loss lse", sizes.statistics(sizes.share().rows), head.any);
  return tensors.take();
}

}  // namespace

int64_t total(const Entries& entries) {
  int64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.bytes;
  return bytes;
}

int64_t total(const Entries& entries, Pool pool) {
  int64_t bytes = 0;
  for (const Entry& entry : entries) bytes += entry.pool == pool ? entry.bytes : 0;
  return bytes;
}

Entries made_by_block(const Workload& workload, int rank, int64_t layer) {
  return made(block_candidates(workload, rank, layer));
}

Entries read_by_block(const Workload& workload, int rank, int64_t layer) {
  return read(block_candidates(workload, rank, layer));
}

Entries saved_by_block(const Workload& workload, int rank, int64_t layer) {
  const WantedByBlock wanted = wanted_by_block(workload, layer);
  if (workload.recompute == Recompute::full)
    return wanted.any() ? Entries{made_by_block(workload, rank, layer).front()} : Entries{};
  Entries entries = read_by_block(workload, rank, layer);
  // What is made again is made from what the activation keeps, if it keeps anything (nn::recompute_input).
  if (workload.recompute == Recompute::selective && wanted.activation.any)
    std::erase_if(entries, [](const Entry& entry) { return entry.name == "down input"; });
  return entries;
}

Entries made_by_head(const Workload& workload, int rank) {
  return made(head_candidates(workload, rank));
}

Entries saved_by_head(const Workload& workload, int rank) {
  return read(head_candidates(workload, rank));
}

int64_t parameters_held(const Workload& workload, int rank) {
  int64_t elements = 0;
  for (const HeldParameter& parameter : held_parameters(workload, rank)) elements += parameter.elements;
  return elements;
}

Entries model_states(const Workload& workload, int rank) {
  int64_t trained = 0;
  for (const HeldParameter& parameter : held_parameters(workload, rank))
    trained += parameter.is_trained ? parameter.elements : 0;
  const bool has_masters = workload.element_bytes < workload.accumulator_bytes();
  return {
      {"weights", parameters_held(workload, rank) * workload.element_bytes},
      {"main gradients", trained * workload.accumulator_bytes()},
      {"master weights", has_masters ? trained * workload.accumulator_bytes() : 0},
      {"optimizer moments", 2 * trained * workload.accumulator_bytes()},
  };
}

}  // namespace shardwise::plan
