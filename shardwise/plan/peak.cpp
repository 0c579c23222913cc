#include "shardwise/plan/peak.h"

#include <algorithm>

#include "shardwise/plan/communication.h"
#include "shardwise/plan/passing.h"

namespace shardwise::plan {
namespace {

/// The ranks' terms and their sum, the stream's first value.
Moment in_embedding(const Workload& workload, int rank) {
  const Sizes sizes(workload, rank);
  const Pool sum_pool = workload.stream == Stream::tp ? workload.term_pool() : Pool::own;
  return {"embedding",
          {{"looked up, a term", sizes.whole(), workload.term_pool()},
           {"stream", workload.tp > 1 ? sizes.stream() : 0, sum_pool}}};
}

Moment in_optimizer(const Workload& workload) {
  return {"optimizer",
          {{"synchronised gradients", synchronised_elements(workload) * workload.accumulator_bytes(),
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

void append(Moments& moments, const Entries& below, const Moments& more) {
  for (const Moment& moment : more) moments.push_back({moment.name, both(below, moment.entries)});
}

/// Of blocks whose backwards are alike the uppermost is the fullest.
void append_backward(Moments& moments, const Workload& workload, int rank,
                     const std::vector<Entries>& below) {
  WantedByBlock above{};
  for (int64_t layer = workload.config.num_hidden_layers - 1; layer >= 0; --layer) {
    const WantedByBlock wanted = wanted_by_block(workload, layer);
    if (!wanted.any()) return;
    if (wanted == above) continue;
    if (workload.recompute == Recompute::full)
      append(moments, below[layer], forward_moments(workload, rank, layer, Run::again));
    append(moments, below[layer], backward_moments(workload, rank, layer));
    above = wanted;
  }
}

}  // namespace

Moments fullest_moments(const Workload& workload, int rank) {
  const int64_t last = workload.config.num_hidden_layers - 1;
  const std::vector<Entries> below = saved_below(workload, rank);
  Moments moments = {in_embedding(workload, rank)};
  append(moments, below[last], forward_moments(workload, rank, last, Run::first));
  append(moments, below.back(), head_forward_moments(workload, rank));
  append(moments, below.back(), head_backward_moments(workload, rank));
  append_backward(moments, workload, rank, below);
  moments.push_back(in_optimizer(workload));
  return moments;
}

Peak training_peak(const Workload& workload, int rank) {
  const Moments moments = fullest_moments(workload, rank);
  const auto fullest = [&](Pool pool) {
    return *std::ranges::max_element(moments, {}, [&](const Moment& m) { return total(m.entries, pool); });
  };
  return {model_states(workload, rank), fullest(Pool::own), fullest(Pool::shared)};
}

}  // namespace shardwise::plan
