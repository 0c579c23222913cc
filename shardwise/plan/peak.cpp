#include "shardwise/plan/peak.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "shardwise/plan/communication.h"
#include "shardwise/plan/passing.h"

namespace shardwise::plan {
namespace {

/// The ranks' terms and their sum, the stream's first value.
Instant in_embedding(const Workload& workload, int rank) {
  const Sizes sizes(workload, rank);
  const Pool sum_pool = workload.stream == Stream::tp ? workload.term_pool() : Pool::own;
  return {"embedding",
          {{"looked up, a term", sizes.whole(), workload.term_pool()},
           {"stream", workload.tp > 1 ? sizes.stream() : 0, sum_pool}}};
}

Instant in_optimizer(const Workload& workload) {
  return {"optimizer",
          {{"synchronized gradients", synchronized_elements(workload) * workload.accumulator_bytes(),
            workload.term_pool()}}};
}

/// Sums up `more` by name and pool.
void add_up_(Entries& sums, const Entries& more) {
  for (const Entry& entry : more) {
    const auto is_same = [&](const Entry& sum) { return sum.name == entry.name && sum.pool == entry.pool; };
    const auto found = std::ranges::find_if(sums, is_same);
    if (found == sums.end()) {
      sums.push_back(entry);
    } else {
      found->bytes += entry.bytes;
    }
  }
}

/// For every block, and at the end for the head, what the blocks below have saved.
std::vector<Entries> saved_below(const Workload& workload, int rank) {
  std::vector<Entries> below(1);
  for (int64_t layer = 0; layer < workload.config.num_hidden_layers; ++layer) {
    Entries sums = below.back();
    add_up_(sums, saved_by_block(workload, rank, layer));
    below.push_back(std::move(sums));
  }
  return below;
}

void append(Instants& instants, const Entries& below, const Instants& more) {
  for (const Instant& instant : more) instants.push_back({instant.name, both(below, instant.entries)});
}

/// Of blocks whose backwards are alike the uppermost is the fullest.
void append_backward(Instants& instants, const Workload& workload, int rank,
                     const std::vector<Entries>& below) {
  WantedByBlock above{};
  for (int64_t layer = workload.config.num_hidden_layers - 1; layer >= 0; --layer) {
    const WantedByBlock wanted = wanted_by_block(workload, layer);
    if (!wanted.any()) return;
    if (wanted == above) continue;
    if (workload.recompute == Recompute::full)
      append(instants, below[layer], forward_instants(workload, rank, layer, Run::again));
    append(instants, below[layer], backward_instants(workload, rank, layer));
    above = wanted;
  }
}

}  // namespace

Instants fullest_instants(const Workload& workload, int rank) {
  const int64_t last = workload.config.num_hidden_layers - 1;
  const std::vector<Entries> below = saved_below(workload, rank);
  Instants instants = {in_embedding(workload, rank)};
  append(instants, below[last], forward_instants(workload, rank, last, Run::first));
  append(instants, below.back(), head_forward_instants(workload, rank));
  append(instants, below.back(), head_backward_instants(workload, rank));
  append_backward(instants, workload, rank, below);
  instants.push_back(in_optimizer(workload));
  return instants;
}

Peak training_peak(const Workload& workload, int rank) {
  TORCH_CHECK_VALUE(!workload.split_batch, "plan: memory is planned for whole batches; got one in halves");
  const Instants instants = fullest_instants(workload, rank);
  const auto fullest = [&](Pool pool) {
    return *std::ranges::max_element(instants, {}, [&](const Instant& m) { return total(m.entries, pool); });
  };
  return {model_states(workload, rank), fullest(Pool::own), fullest(Pool::shared)};
}

}  // namespace shardwise::plan
