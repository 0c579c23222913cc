#include "shardwise/plan/memory.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "shardwise/base/part_buffers.h"
#include "shardwise/plan/expert_shard.h"
#include "shardwise/plan/parameters.h"
#include "shardwise/plan/required_gradients.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

/// A tensor that may be saved, and whether a required gradient reads it.
struct Candidate {
  SavedAllocation allocation;
  bool is_read;
};
using Candidates = std::vector<Candidate>;

SavedAllocations made(const Candidates& candidates) {
  SavedAllocations allocations;
  for (const Candidate& candidate : candidates) allocations.push_back(candidate.allocation);
  return allocations;
}

SavedAllocations read(const Candidates& candidates) {
  SavedAllocations allocations;
  for (const auto& [allocation, is_read] : candidates) {
    if (is_read) allocations.push_back(allocation);
  }
  return allocations;
}

/// The tensors that a norm may save.
struct NormTensors {
  SavedTensor input, rstd, mean;
};

/// Builds the list of candidates.
class CandidateList {
 public:
  CandidateList(const Workload& workload, int rank) : workload_(workload), sizes_(workload, rank) {}

  void add(SavedTensor tensor, int64_t bytes, bool is_read) { add({tensor, bytes}, is_read); }
  void add(const SavedAllocation& allocation, bool is_read) { list_.push_back({allocation, is_read}); }

  /// A norm saves its input and one value per row, LayerNorm two.
  void add_norm(const NormTensors& norm, Pool input_pool, const RequiredGradients& required) {
    const int64_t statistic = sizes_.statistics(sizes_.shard().residual_rows);
    add({norm.input, sizes_.local_hidden(), input_pool}, required.any);
    add(norm.rstd, statistic, required.any);
    if (workload_.config.norm == config::Norm::layer) add(norm.mean, statistic, required.any);
  }
  void add_column_input(SavedTensor tensor, const RequiredGradients& required) {
    const bool is_gathered = workload_.column_input_storage == ColumnInputStorage::gathered;
    add({tensor, is_gathered ? sizes_.full_hidden() : sizes_.local_hidden(), workload_.column_input_pool()},
        required.weight);
  }

  /// Every rank computes the latents of the rows of its residual stream.
  void add_latents() {
    const auto& latent = workload_.config.latent_attention;
    if (!latent) return;
    const int64_t row = (latent->q_lora_rank + latent->cached_features()) * workload_.element_bytes;
    add(SavedTensor::latents, sizes_.shard().residual_rows * row, /*is_read=*/true);
    add(SavedTensor::normalized_latents, sizes_.shard().residual_rows * row, /*is_read=*/true);
  }
  /// What router and experts save.
  void add_experts() {
    using enum SavedTensor;
    const config::Experts& experts = *workload_.config.experts;
    const int64_t rows = expert_shard(workload_).rows, e = workload_.element_bytes;
    add(router_scores, sizes_.statistics(sizes_.shard().residual_rows * experts.count), /*is_read=*/true);
    add(expert_input, rows * workload_.config.hidden_size * e, /*is_read=*/true);
    add(expert_gate_and_up, rows * 2 * experts.intermediate_size * e, /*is_read=*/true);
    add(expert_down_input, rows * experts.intermediate_size * e, /*is_read=*/true);
    add(expert_output, rows * workload_.config.hidden_size * e, /*is_read=*/true);
  }

  const Sizes& sizes() const { return sizes_; }
  Candidates take() { return std::move(list_); }

 private:
  const Workload& workload_;
  Sizes sizes_;
  Candidates list_;
};

void add_attention(CandidateList& tensors, const RequiredByBlock& required) {
  using enum SavedTensor;
  const Sizes& sizes = tensors.sizes();
  const bool attends = required.attention.any;
  tensors.add_column_input(qkv_input, required.qkv);
  tensors.add_latents();
  tensors.add(q, sizes.features(sizes.query_features()), attends);
  tensors.add(k, sizes.features(sizes.key_features()), attends);
  tensors.add(v, sizes.features(sizes.value_features()), attends);
  tensors.add(attention_output, sizes.features(sizes.output_features()), attends || required.out.weight);
  tensors.add(attention_lse, sizes.shard().heads * sizes.statistics(sizes.shard().rows), attends);
}

Candidates block_candidates(const Workload& workload, int rank, int64_t layer) {
  using enum SavedTensor;
  CandidateList tensors(workload, rank);
  const RequiredByBlock required = workload.required_by_block(layer);
  const Sizes& sizes = tensors.sizes();
  tensors.add_norm({norm1_input, norm1_rstd, norm1_mean}, workload.block_input_pool(layer), required.norm1);
  add_attention(tensors, required);
  tensors.add_norm({norm2_input, norm2_rstd, norm2_mean}, Pool::private_memory, required.norm2);
  tensors.add_column_input(mlp_input, required.mlp);
  tensors.add(workload.config.is_gated() ? gate_and_up : up, sizes.features(sizes.inner_features()),
              required.activation.any);
  tensors.add(down_input, sizes.features(sizes.shard().ffn), required.down.weight);
  if (workload.config.has_experts(layer)) tensors.add_experts();
  return tensors.take();
}

Candidates head_candidates(const Workload& workload, int rank) {
  using enum SavedTensor;
  CandidateList tensors(workload, rank);
  const auto [norm, head] = workload.required_by_head();
  tensors.add_norm({norm_input, norm_rstd, norm_mean}, Pool::private_memory, norm);
  const Pool pool =
      workload.parallelism == Parallelism::tp ? workload.partial_sum_pool() : Pool::private_memory;
  tensors.add({head_gradient, tensors.sizes().local_hidden(), pool}, head.input);
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

int64_t total(const SavedAllocations& saved) {
  return total(named(saved));
}

Allocations named(const SavedAllocations& saved) {
  Allocations allocations;
  for (const auto& [tensor, bytes, pool] : saved) allocations.push_back({text_of(tensor), bytes, pool});
  return allocations;
}

SavedAllocations made_by_block(const Workload& workload, int rank, int64_t layer) {
  return made(block_candidates(workload, rank, layer));
}

SavedAllocations read_by_block(const Workload& workload, int rank, int64_t layer) {
  return read(block_candidates(workload, rank, layer));
}

SavedAllocations saved_by_block(const Workload& workload, int rank, int64_t layer) {
  const RequiredByBlock required = workload.required_by_block(layer);
  if (workload.recompute == Recompute::full)
    return required.any() ? SavedAllocations{made_by_block(workload, rank, layer).front()}
                          : SavedAllocations{};
  SavedAllocations allocations = read_by_block(workload, rank, layer);
  // The activation's saved input is what selective recomputation starts from (nn::recompute_input).
  if (workload.recompute == Recompute::selective && required.activation.any)
    std::erase_if(allocations, [](const auto& saved) {
      return saved.tensor == SavedTensor::down_input || saved.tensor == SavedTensor::expert_down_input;
    });
  return allocations;
}

SavedAllocations saved_by_head(const Workload& workload, int rank) {
  return read(head_candidates(workload, rank));
}

int64_t local_parameter_count(const Workload& workload, int rank) {
  int64_t elements = 0;
  for (const LocalParameter& parameter : local_parameters(workload, rank)) elements += parameter.elements;
  return elements;
}

int64_t total(const ModelStates& states) {
  return states.weights + states.main_gradients + states.owned_gradients + states.master_weights +
         states.optimizer_moments;
}

namespace {

int64_t elements_owned_by(int replica, const std::vector<base::Split>& parts) {
  int64_t elements = 0;
  for (const base::Split& owners : parts) elements += owners.range(replica).size();
  return elements;
}

/// Returns the elements of the buffers into which replicas gather sharded weights.
int64_t gathered_elements(const Workload& workload, int rank) {
  const base::PartBuffers buffers(workload.config.tie_word_embeddings);
  const std::vector<base::Split> trained = owned_by_replicas(workload, rank),
                                 frozen = frozen_by_replicas(workload, rank);
  std::array<int64_t, base::PartBuffers::kCount> largest{};
  for (size_t part = 0; part < trained.size(); ++part) {
    int64_t& elements = largest[buffers.buffer_of(part)];
    elements = std::max(elements, trained[part].size() + frozen[part].size());
  }
  return std::accumulate(largest.begin(), largest.end(), int64_t{0});
}

/// Returns the elements of the main gradients in which backward adds those of one part after the other.
int64_t buffered_elements(const Workload& workload, int rank) {
  const std::vector<base::Split> owners = owned_by_replicas(workload, rank);
  const bool is_first_apart = workload.config.tie_word_embeddings;
  int64_t largest = 0;
  for (size_t part = is_first_apart ? 1 : 0; part < owners.size(); ++part)
    largest = std::max(largest, owners[part].size());
  return largest + (is_first_apart ? owners[0].size() : 0);
}

}  // namespace

ModelStates model_states(const Workload& workload, int rank, int replica) {
  int64_t held = 0, trained = 0, copied = 0, trained_copy = 0;
  for (const LocalParameter& parameter : local_parameters(workload, rank)) {
    held += parameter.elements;
    trained += parameter.is_trained ? parameter.elements : 0;
    copied += parameter.is_copy ? parameter.elements : 0;
    trained_copy += parameter.is_copy && parameter.is_trained ? parameter.elements : 0;
  }
  if (replica % workload.replicas_per_copy > 0) held = copied;
  const int64_t owned = elements_owned_by(replica, owned_by_replicas(workload, rank));
  if (workload.zero == ZeroStage::weights)
    held = owned + elements_owned_by(replica, frozen_by_replicas(workload, rank)) +
           gathered_elements(workload, rank);
  const int64_t updated = workload.zero == ZeroStage::none ? trained - trained_copy : owned;
  const bool shards_gradients = workload.zero >= ZeroStage::gradients;
  const int64_t added = shards_gradients ? buffered_elements(workload, rank) : trained;
  const bool has_masters = workload.element_bytes < workload.accumulator_bytes();
  return {.weights = held * workload.element_bytes,
          .main_gradients = added * workload.accumulator_bytes(),
          .owned_gradients = shards_gradients ? owned * workload.accumulator_bytes() : 0,
          .tied_weight = copied * workload.element_bytes,
          .tied_gradient = trained_copy * workload.accumulator_bytes(),
          .master_weights = has_masters ? updated * workload.accumulator_bytes() : 0,
          .optimizer_moments = 2 * updated * workload.accumulator_bytes()};
}

}  // namespace shardwise::plan
