#include "shardwise/plan/memory.h"

#include <utility>

#include "shardwise/plan/parameters.h"
#include "shardwise/plan/required_gradients.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

constexpr int64_t kLabelBytes = 8;  // int64

/// A tensor that may be saved, and whether a required gradient reads it.
struct Candidate {
  Allocation allocation;
  bool is_read;
};
using Candidates = std::vector<Candidate>;

Allocations made(const Candidates& candidates) {
  Allocations allocations;
  for (const Candidate& candidate : candidates) allocations.push_back(candidate.allocation);
  return allocations;
}

Allocations read(const Candidates& candidates) {
  Allocations allocations;
  for (const auto& [allocation, is_read] : candidates) {
    if (is_read) allocations.push_back(allocation);
  }
  return allocations;
}

/// Builds the list of candidates.
class CandidateList {
 public:
  CandidateList(const Workload& workload, int rank) : workload_(workload), sizes_(workload, rank) {}

  void add(const std::string& name, int64_t bytes, bool is_read) { add({name, bytes}, is_read); }
  void add(const Allocation& allocation, bool is_read) { list_.push_back({allocation, is_read}); }

  /// A norm saves its input and one value per row, LayerNorm two.
  void add_norm(const std::string& name, Pool input_pool, const RequiredGradients& required) {
    const int64_t statistic = sizes_.statistics(sizes_.shard().residual_rows);
    add({name + " input", sizes_.local_hidden(), input_pool}, required.any);
    add(name + " rstd", statistic, required.any);
    if (workload_.config.norm == model::Norm::layer) add(name + " mean", statistic, required.any);
  }
  void add_column_input(const std::string& name, const RequiredGradients& required) {
    const bool is_gathered = workload_.save_for_backward == SaveForBackward::gathered;
    add({name, is_gathered ? sizes_.full_hidden() : sizes_.local_hidden(), workload_.column_input_pool()},
        required.weight);
  }

  const Sizes& sizes() const { return sizes_; }
  Candidates take() { return std::move(list_); }

 private:
  const Workload& workload_;
  Sizes sizes_;
  Candidates list_;
};

Candidates block_candidates(const Workload& workload, int rank, int64_t layer) {
  CandidateList tensors(workload, rank);
  const RequiredByBlock required = required_by_block(workload, layer);
  const Sizes& sizes = tensors.sizes();
  const int64_t queries = sizes.features(sizes.query_features()), keys = sizes.features(sizes.key_features());
  const bool attends = required.attention.any;
  tensors.add_norm("norm1", workload.block_input_pool(layer), required.norm1);
  tensors.add_column_input("qkv input", required.qkv);
  tensors.add("q", queries, attends);  // before q/k norm, if there is one
  tensors.add("k", keys, attends);
  tensors.add("v", keys, attends);
  tensors.add("attention output", queries,
              attends || required.out.weight);  // also the output projection's input
  tensors.add("attention lse", sizes.shard().heads * sizes.statistics(sizes.shard().rows), attends);
  tensors.add_norm("norm2", Pool::private_memory, required.norm2);
  tensors.add_column_input("mlp input", required.mlp);
  tensors.add(workload.config.is_gated() ? "gate and up" : "up", sizes.features(sizes.inner_features()),
              required.activation.any);
  tensors.add("down input", sizes.features(sizes.shard().ffn), required.down.weight);
  return tensors.take();
}

Candidates head_candidates(const Workload& workload, int rank) {
  CandidateList tensors(workload, rank);
  const auto [norm, head] = required_by_head(workload);
  const Sizes& sizes = tensors.sizes();
  tensors.add_norm("norm", Pool::private_memory, norm);
  tensors.add_column_input("head input", head);
  tensors.add("logits", sizes.features(sizes.shard().vocab), head.any);
  if (workload.is_padded) tensors.add("labels", sizes.shard().rows * kLabelBytes, head.any);
  tensors.add("loss lse", sizes.statistics(sizes.shard().rows), head.any);
  return tensors.take();
}

}  // namespace

int64_t total(const Allocations& allocations) {
  int64_t bytes = 0;
  for (const Allocation& allocation : allocations) bytes += allocation.bytes;
  return bytes;
}

int64_t total(const Allocations& allocations, Pool pool) {
  int64_t bytes = 0;
  for (const Allocation& allocation : allocations) bytes += allocation.pool == pool ? allocation.bytes : 0;
  return bytes;
}

Allocations made_by_block(const Workload& workload, int rank, int64_t layer) {
  return made(block_candidates(workload, rank, layer));
}

Allocations read_by_block(const Workload& workload, int rank, int64_t layer) {
  return read(block_candidates(workload, rank, layer));
}

Allocations saved_by_block(const Workload& workload, int rank, int64_t layer) {
  const RequiredByBlock required = required_by_block(workload, layer);
  if (workload.recompute == Recompute::full)
    return required.any() ? Allocations{made_by_block(workload, rank, layer).front()} : Allocations{};
  Allocations allocations = read_by_block(workload, rank, layer);
  // The activation's saved input is what selective recomputation starts from (nn::recompute_input).
  if (workload.recompute == Recompute::selective && required.activation.any)
    std::erase_if(allocations, [](const Allocation& allocation) { return allocation.name == "down input"; });
  return allocations;
}

Allocations made_by_head(const Workload& workload, int rank) {
  return made(head_candidates(workload, rank));
}

Allocations saved_by_head(const Workload& workload, int rank) {
  return read(head_candidates(workload, rank));
}

int64_t local_parameter_count(const Workload& workload, int rank) {
  int64_t elements = 0;
  for (const LocalParameter& parameter : local_parameters(workload, rank)) elements += parameter.elements;
  return elements;
}

Allocations model_states(const Workload& workload, int rank) {
  int64_t trained = 0;
  for (const LocalParameter& parameter : local_parameters(workload, rank))
    trained += parameter.is_trained ? parameter.elements : 0;
  const bool has_masters = workload.element_bytes < workload.accumulator_bytes();
  return {
      {"weights", local_parameter_count(workload, rank) * workload.element_bytes},
      {"main gradients", trained * workload.accumulator_bytes()},
      {"master weights", has_masters ? trained * workload.accumulator_bytes() : 0},
      {"optimizer moments", 2 * trained * workload.accumulator_bytes()},
  };
}

}  // namespace shardwise::plan
