// The splits of a run over the ranks of one host, ranked by time over all numbers of ranks.
//
// search.h and inference_search.h compute the plans of each number of ranks; this file chooses the numbers
// and divides the host's memory.
#pragma once
#include <map>
#include <vector>

#include "shardwise/plan/inference_search.h"
#include "shardwise/plan/search.h"

namespace shardwise::plan {

/// A host that was measured with several numbers of ranks.
struct Host {
  std::map<int64_t, Machine> machines = {};  // by the number of ranks that they were measured with
  int64_t memory_bytes = 0;                  // that all ranks together may fill
  std::optional<int64_t> rank_cap = {};      // that one rank may fill

  /// Returns the bytes that each of `ranks` ranks may fill.
  int64_t bytes_of_rank(int64_t ranks) const;
};

/// Returns the numbers of ranks to compare: the powers of two up to `most`, and that itself; 1 if that is
/// less.
std::vector<int64_t> ranks_to_compare(int64_t most);

/// Tries the step of `task` with each number of ranks that `host` was measured with, over all axes, and with
/// each of `choices`; task.ranks is ignored. Errors: those of search.
SearchResult search_host(const TrainingTask& task, const Host& host, const std::vector<Pins>& choices);
/// Tries generation with each number of ranks, of one replica. Errors: those of search.
InferenceSearchResult search_host(const InferenceTask& task, const Host& host);

}  // namespace shardwise::plan
