#include "shardwise/cli/generate_memory.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "shardwise/base/isa.h"
#include "shardwise/cli/inference_mesh.h"
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

/// Returns a batch of `sequences` sequences, whose prompts have `prompt_tokens` tokens.
plan::Generation batch_of(const model::DecoderWeights& weights, const infer::Batching& batching,
                          int64_t sequences, int64_t prompt_tokens) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(weights.dtype()));
  plan::Generation batch{weights.config(), weights.group().size(), element_bytes};
  batch.sequences = sequences;
  batch.sampled_rows =
      std::max(sequences,
               std::min({sequences * (1 + batching.drafted), batching.rows, weights.rows_with_equal_bits()}));
  batch.rows = std::max(batch.sampled_rows, std::min(prompt_tokens, batching.rows));
  batch.has_int8_cache = batching.cache_dtype == at::kChar;
  const bool is_bf16 = weights.dtype() == at::kBFloat16;
  batch.attends_by_tiles = is_bf16 && base::best_isa() >= base::Isa::avx512_bf16;
  batch.multiplies_by_tiles = is_bf16 && base::best_isa() >= base::Isa::amx;
  return batch;
}

PlannedMemory planned_of(const plan::Generation& batch, int rank) {
  const plan::GenerationPeak peak = plan::generation_peak(batch, rank);
  return {peak.private_bytes(), peak.symmetric_heap_bytes()};
}

}  // namespace

std::vector<plan::Generation> largest_batches(const model::DecoderWeights& weights,
                                              const std::vector<infer::Request>& requests,
                                              const infer::Batching& batching, const config::Stages& stages) {
  std::vector<int64_t> prompts, caches;
  for (const infer::Request& request : requests) {
    if (request.max_new_tokens == 0) continue;
    prompts.push_back(std::ssize(request.prompt));
    caches.push_back(infer::cache_capacity(request));
  }
  const base::Split sizes =
      infer::batch_sizes(std::ssize(prompts), batching.sequences, static_cast<int>(stages.pp));
  std::vector<plan::Generation> batches;
  if (std::ssize(prompts) > batching.sequences) {
    const int64_t sequences = sizes.range(0).size();
    batches.push_back(batch_of(weights, batching, sequences, sum_of_largest(prompts, sequences)));
    batches.back().cached_tokens = sum_of_largest(caches, batching.sequences);
  } else {
    for (int batch = 0; batch < sizes.ranks(); ++batch) {
      const auto [begin, end] = sizes.range(batch);
      const int64_t last = std::min(end, std::ssize(prompts));  // there may be no request
      batches.push_back(
          batch_of(weights, batching, end - begin,
                   std::accumulate(prompts.begin() + begin, prompts.begin() + last, int64_t{0})));
      batches.back().cached_tokens = std::accumulate(caches.begin(), caches.begin() + last, int64_t{0});
    }
  }
  const int64_t all = weights.config().vocab_size;
  for (plan::Generation& batch : batches) {
    batch.longest_cache = sum_of_largest(caches, 1);
    batch.gathers_logits = std::ranges::any_of(requests, [&](const infer::Request& request) {
      return infer::candidates_needed(request.sampling, all) == all;
    });
    batch.wants_logprobs = std::ranges::any_of(requests, &infer::Request::wants_logprobs);
  }
  return batches;
}

PlannedMemories planned_memory(const std::vector<plan::Generation>& batches, const config::Stages& stages,
                               const std::vector<int64_t>& weight_bytes, const comm::Mesh& mesh) {
  PlannedMemories by_rank;
  if (!mesh.symmetric_heaps_peak()) return by_rank;
  const int64_t layers = batches.front().config.num_hidden_layers;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const base::Range blocks =
        config::layers_of(stages, layers, mesh.coordinate(train::kPipelineAxis, rank)).front();
    PlannedMemory& planned = by_rank.emplace_back();
    for (plan::Generation batch : batches) {
      batch.blocks = blocks.size();
      batch.has_embedding = blocks.begin == 0;
      batch.has_head = blocks.end == layers;
      batch.weight_bytes = weight_bytes[size_t(rank)];
      const PlannedMemory one = planned_of(batch, mesh.coordinate(train::kTensorAxis, rank));
      planned.private_bytes = std::max(planned.private_bytes, one.private_bytes);
      planned.symmetric_heap_bytes = std::max(planned.symmetric_heap_bytes, one.symmetric_heap_bytes);
    }
  }
  return by_rank;
}

std::vector<PeakMemory> peaks_of_ranks(const comm::Mesh& mesh) {
  const comm::Group& world = world_of(mesh);
  return comm::gather_values(PeakMemory{kernels::peak_bytes(world.device()), mesh.symmetric_heaps_peak()},
                             world);
}

}  // namespace shardwise::cli
