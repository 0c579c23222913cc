#include "shardwise/cli/generate_memory.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "shardwise/base/isa.h"
#include "shardwise/cli/generation_mesh.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/infer/batch.h"
#include "shardwise/kernels/device.h"

namespace shardwise::cli {
namespace {

/// Returns the sum of the `count` largest values.
int64_t sum_of_largest(std::vector<int64_t> values, int64_t count) {
  std::ranges::sort(values, std::greater());
  return std::accumulate(values.begin(), values.begin() + std::min(count, std::ssize(values)), int64_t{0});
}

}  // namespace

plan::Generation largest_batch(const model::DecoderWeights& weights,
                               const std::vector<infer::Request>& requests, const infer::Batching& batching,
                               const config::Stages& stages) {
  const config::Config& config = weights.config();
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(weights.dtype()));
  std::vector<int64_t> prompts, caches;
  for (const infer::Request& request : requests) {
    if (request.max_new_tokens == 0) continue;
    prompts.push_back(std::ssize(request.prompt));
    caches.push_back(infer::cache_capacity(request));
  }
  plan::Generation batch{config, weights.group().size(), element_bytes};
  batch.sequences = infer::batch_sizes(std::ssize(prompts), batching.sequences, static_cast<int>(stages.pp))
                        .range(0)
                        .size();
  const int64_t waiting = sum_of_largest(prompts, batch.sequences);
  batch.sampled_rows = std::max(batch.sequences, std::min({batch.sequences * (1 + batching.drafted),
                                                           batching.rows, weights.rows_with_equal_bits()}));
  batch.rows = std::max(batch.sampled_rows, std::min(waiting, batching.rows));
  batch.cached_tokens = sum_of_largest(caches, batching.sequences);
  batch.longest_cache = sum_of_largest(caches, 1);
  batch.has_int8_cache = batching.cache_dtype == at::kChar;
  batch.gathers_logits = std::ranges::any_of(requests, [&](const infer::Request& request) {
    return infer::candidates_needed(request.sampling, config.vocab_size) == config.vocab_size;
  });
  batch.wants_logprobs = std::ranges::any_of(requests, &infer::Request::wants_logprobs);
  const bool is_bf16 = weights.dtype() == at::kBFloat16;
  batch.attends_by_tiles = is_bf16 && base::best_isa() >= base::Isa::avx512_bf16;
  batch.multiplies_by_tiles = is_bf16 && base::best_isa() >= base::Isa::amx;
  return batch;
}

PlannedMemories planned_memory(const plan::Generation& batch, const config::Stages& stages,
                               const std::vector<int64_t>& weight_bytes, const comm::Mesh& mesh) {
  PlannedMemories by_rank;
  if (!mesh.symmetric_heaps_peak()) return by_rank;
  const int64_t layers = batch.config.num_hidden_layers;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const base::Range blocks = config::layers_of(stages, layers, mesh.coordinate(kStageAxis, rank)).front();
    plan::Generation of_stage = batch;
    of_stage.blocks = blocks.size();
    of_stage.has_embedding = blocks.begin == 0;
    of_stage.has_head = blocks.end == layers;
    of_stage.weight_bytes = weight_bytes[size_t(rank)];
    const plan::GenerationPeak peak = plan::generation_peak(of_stage, mesh.coordinate(kTensorAxis, rank));
    by_rank.push_back({peak.private_bytes(), peak.symmetric_heap_bytes()});
  }
  return by_rank;
}

std::vector<PeakMemory> peaks_of_ranks(const comm::Mesh& mesh) {
  const comm::Group& world = world_of(mesh);
  return comm::gather_values(PeakMemory{kernels::peak_bytes(world.device()), mesh.symmetric_heaps_peak()},
                             world);
}

}  // namespace shardwise::cli
