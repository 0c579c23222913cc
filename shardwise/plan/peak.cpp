#include "shardwise/plan/peak.h"

#include <algorithm>
#include <set>
#include <utility>

#include "shardwise/plan/communication.h"
#include "shardwise/plan/transient_buffers.h"

namespace shardwise::plan {
namespace {

/// The partial embedding rows and their sum, the first value of the residual stream.
MemorySnapshot embedding_snapshot(const Workload& workload, int rank) {
  const Sizes sizes(workload, rank);
  const Pool sum_pool =
      workload.parallelism == Parallelism::tp ? workload.partial_sum_pool() : Pool::private_memory;
  return {"embedding",
          {{"partial embedding rows", sizes.full_hidden(), workload.partial_sum_pool()},
           {"residual stream", workload.tp > 1 ? sizes.local_hidden() : 0, sum_pool}}};
}

MemorySnapshot optimizer_snapshot(const Workload& workload) {
  return {"optimizer",
          {{"synchronized gradients", synchronized_elements(workload) * workload.accumulator_bytes(),
            workload.partial_sum_pool()}}};
}

/// Adds `more` to `sums`, by tensor and pool.
void accumulate_(SavedAllocations& sums, const SavedAllocations& more) {
  for (const SavedAllocation& allocation : more) {
    const auto is_same = [&](const SavedAllocation& sum) {
      return sum.tensor == allocation.tensor && sum.pool == allocation.pool;
    };
    const auto found = std::ranges::find_if(sums, is_same);
    if (found == sums.end()) {
      sums.push_back(allocation);
    } else {
      found->bytes += allocation.bytes;
    }
  }
}

/// Returns, for every block of the stage and finally for the head, what the earlier blocks have saved.
std::vector<SavedAllocations> saved_before_each(const Workload& workload, int rank) {
  std::vector<SavedAllocations> earlier(1);
  for (int64_t layer = workload.blocks().begin; layer < workload.blocks().end; ++layer) {
    SavedAllocations sums = earlier.back();
    accumulate_(sums, saved_by_block(workload, rank, layer));
    earlier.push_back(std::move(sums));
  }
  return earlier;
}

/// Among blocks with equal required gradients the last one has the highest peak.
void append_backward(MemorySnapshots& snapshots, const Workload& workload, int rank,
                     const std::vector<SavedAllocations>& earlier) {
  RequiredByBlock next{};
  const base::Range blocks = workload.blocks();
  for (int64_t layer = blocks.end - 1; layer >= blocks.begin; --layer) {
    const RequiredByBlock required = workload.required_by_block(layer);
    if (!required.any()) return;
    if (required == next) continue;
    const Allocations saved = named(earlier[layer - blocks.begin]);
    if (workload.recompute == Recompute::full)
      append(snapshots, forward_snapshots(workload, rank, layer, ForwardRun::recompute), saved);
    append(snapshots, backward_snapshots(workload, rank, layer), saved);
    next = required;
  }
}

}  // namespace

MemorySnapshots pass_candidates(const Workload& workload, int rank) {
  const std::vector<SavedAllocations> earlier = saved_before_each(workload, rank);
  MemorySnapshots snapshots;
  if (workload.has_embedding()) snapshots.push_back(embedding_snapshot(workload, rank));
  append(snapshots, forward_snapshots(workload, rank, workload.blocks().end - 1, ForwardRun::first),
         named(earlier.end()[-2]));
  if (workload.has_head()) {
    append(snapshots, head_forward_snapshots(workload, rank), named(earlier.back()));
    append(snapshots, head_backward_snapshots(workload, rank), named(earlier.back()));
  }
  append_backward(snapshots, workload, rank, earlier);
  return snapshots;
}

MemorySnapshots peak_candidates(const Workload& workload, int rank) {
  MemorySnapshots snapshots = pass_candidates(workload, rank);
  snapshots.push_back(optimizer_snapshot(workload));
  return snapshots;
}

namespace {

/// Returns the bytes of weights and main gradients in the symmetric heap.
int64_t shared_states(const Workload& workload, const ModelStates& states) {
  return (workload.gradient_pool() == Pool::symmetric_heap ? states.main_gradients - states.tied_gradient
                                                           : 0) +
         (workload.weight_pool() == Pool::symmetric_heap ? states.weights - states.tied_weight : 0);
}

/// Returns what a micro-batch in flight has saved in one run of blocks, with the output that a stage keeps
/// until it receives its gradient.
Allocations saved_by_chunk(const Workload& chunk, int rank) {
  Allocations saved = named(saved_before_each(chunk, rank).back());
  if (!chunk.has_head())
    saved.push_back({"output of the stage", Sizes(chunk, rank).local_hidden(), Pool::private_memory});
  return saved;
}

void append_times(Allocations& sum, int64_t times, const Allocations& one) {
  for (const Allocation& allocation : one)
    sum.push_back({allocation.name, times * allocation.bytes, allocation.pool});
}

Peak peak_among(const MemorySnapshots& snapshots, const Workload& workload, int rank) {
  const auto peak_of = [&](Pool pool) {
    return *std::ranges::max_element(snapshots, {},
                                     [&](const MemorySnapshot& m) { return total(m.allocations, pool); });
  };
  const ModelStates states = model_states(workload, rank);
  return {states, peak_of(Pool::private_memory), peak_of(Pool::symmetric_heap),
          shared_states(workload, states)};
}

}  // namespace

Peak training_peak(const Workload& workload, int rank) {
  return peak_among(peak_candidates(workload, rank), workload, rank);
}

Peak stage_peak(const Workload& workload, int rank, const base::Pipeline& pipeline) {
  const std::vector<Workload> chunks = workload.chunks();
  const Allocation message{"message to a stage",
                           stage_messages(workload, rank, /*micro_batches=*/1).largest_bytes,
                           workload.pool_between(workload.pp)};
  MemorySnapshots snapshots = {optimizer_snapshot(workload)};
  std::vector<int64_t> in_flight(chunks.size(), 0);
  std::set<std::pair<std::vector<int64_t>, size_t>> seen;  // many actions have the same memory
  for (const base::PipelineAction& action : pipeline.actions(workload.stage_index)) {
    const auto number = static_cast<size_t>(action.chunk);
    const bool is_forward = action.kind == base::PipelineAction::Kind::forward;
    if (!is_forward) --in_flight[number];
    if (seen.emplace(in_flight, number).second) {
      Allocations others = {message};
      for (size_t i = 0; i < chunks.size(); ++i)
        append_times(others, in_flight[i], saved_by_chunk(chunks[i], rank));
      if (!chunks[number].has_head())
        others.push_back({"output of the stage", Sizes(workload, rank).local_hidden(), Pool::private_memory});
      append(snapshots, pass_candidates(chunks[number], rank), others);
    }
    if (is_forward) ++in_flight[number];
  }
  return peak_among(snapshots, workload, rank);
}

Peak peak_of_replica(Peak first, const Workload& workload, int rank, int replica) {
  first.states = model_states(workload, rank, replica);
  first.shared_states = shared_states(workload, first.states);
  return first;
}

}  // namespace shardwise::plan
