#include "shardwise/parallel/replicas.h"

namespace shardwise::parallel {

std::vector<ReplicatedSlice> replicated_slices(const base::ShardRule& rule, int rank) {
  std::vector<ReplicatedSlice> slices;
  const auto pieces = rule.pieces(rank);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const base::Segment& segment = rule.segments[i];
    if (segment.split.is_partition()) continue;
    const base::Range held = segment.split.range(rank);
    for (int64_t index = 0; index < segment.split.size(); ++index) {
      std::vector<int> holders = segment.split.holders(index);
      if (holders.size() < 2) continue;
      const bool is_held = held.begin <= index && index < held.end;
      const int64_t begin = pieces[i].local_begin + (is_held ? (index - held.begin) * segment.unit : 0);
      slices.push_back({std::move(holders), segment.unit, begin, is_held});
    }
  }
  return slices;
}

}  // namespace shardwise::parallel
