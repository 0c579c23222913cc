#include "shardwise/plan/host_search.h"

#include <algorithm>

namespace shardwise::plan {
namespace {

template <class T>
void append_all(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// Adds what was found to `all`.
template <class Result>
void add(Result& all, const Result& found) {
  append_all(all.plans, found.plans);
  append_all(all.refused, found.refused);
}

}  // namespace

int64_t Host::bytes_of_rank(int64_t ranks) const {
  const int64_t share = memory_bytes / ranks;
  return std::min(rank_cap.value_or(share), share);
}

std::vector<int64_t> ranks_to_compare(int64_t most) {
  std::vector<int64_t> ranks;
  for (int64_t count = 1; count < most; count *= 2) ranks.push_back(count);
  ranks.push_back(std::max<int64_t>(most, 1));
  return ranks;
}

SearchResult search_host(const TrainingTask& task, const Host& host, const std::vector<Pins>& choices) {
  SearchResult all;
  TrainingTask of_ranks = task;
  for (const auto& [ranks, machine] : host.machines) {
    of_ranks.ranks = ranks;
    for (const Pins& pins : choices) add(all, search(of_ranks, machine, pins, host.bytes_of_rank(ranks)));
  }
  std::ranges::stable_sort(all.plans, {}, [](const TrainingPlan& plan) { return plan.time.total(); });
  return all;
}

InferenceSearchResult search_host(const InferenceTask& task, const Host& host) {
  InferenceSearchResult all;
  InferenceTask of_ranks = task;
  for (const auto& [ranks, machine] : host.machines) {
    of_ranks.ranks = ranks;
    add(all, search(of_ranks, machine, InferencePins{.tp = ranks}, host.bytes_of_rank(ranks)));
  }
  std::ranges::stable_sort(all.plans, {},
                           [&](const InferencePlan& plan) { return plan.seconds(task.new_tokens); });
  return all;
}

}  // namespace shardwise::plan
