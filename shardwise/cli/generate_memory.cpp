#include "shardwise/cli/generate_memory.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "shardwise/base/isa.h"
#include "shardwise/comm/gather_values.h"
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
                               const std::vector<infer::Request>& requests, const infer::Batching& batching) {
  const config::Config& config = weights.config();
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(weights.dtype()));
  std::vector<int64_t> prompts, caches;
  for (const infer::Request& request : requests) {
    if (request.max_new_tokens == 0) continue;
    prompts.push_back(std::ssize(request.prompt));
    caches.push_back(infer::cache_capacity(request));
  }
  plan::Generation batch{config, weights.group().size(), element_bytes};
  batch.sequences = std::clamp<int64_t>(std::ssize(prompts), 1, batching.sequences);
  const int64_t waiting = sum_of_largest(prompts, batching.sequences);
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

PlannedMemories planned_memory(plan::Generation batch, const std::vector<int64_t>& weight_bytes,
                               const comm::Group& group) {
  PlannedMemories by_rank;
  if (group.size() > 1 && !group.has_symmetric_heap()) return by_rank;
  for (int rank = 0; rank < group.size(); ++rank) {
    batch.weight_bytes = weight_bytes[size_t(rank)];
    const plan::GenerationPeak peak = plan::generation_peak(batch, rank);
    by_rank.push_back({peak.private_bytes(), peak.symmetric_heap_bytes()});
  }
  return by_rank;
}

std::vector<PeakMemory> peaks_of_ranks(const comm::Group& group) {
  PeakMemory local{kernels::peak_bytes(group.device()), std::nullopt};
  if (const comm::SymmetricHeap* heap = group.symmetric_heap())
    local.symmetric_heap_bytes = heap->peak_bytes();
  if (group.size() == 1) local.symmetric_heap_bytes = 0;
  return comm::gather_values(local, group);
}

}  // namespace shardwise::cli
