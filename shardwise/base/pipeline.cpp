#include "shardwise/base/pipeline.h"

#include <algorithm>

#include "shardwise/base/split.h"

namespace shardwise::base {
namespace {

using Kind = PipelineAction::Kind;

/// Cuts the micro-batches into groups of as many as there are stages, or a few more: a stage runs the first
/// chunk of a group, then its next chunk. Fewer than that would leave the next chunk without input.
Split groups_of(const Pipeline& pipeline) {
  const int64_t full = pipeline.micro_batches / pipeline.stages;
  return Split::even("micro-batch", pipeline.micro_batches, static_cast<int>(std::max<int64_t>(full, 1)));
}

/// Returns the passes of one kind in their order.
std::vector<PipelineAction> passes(const Pipeline& pipeline, Kind kind) {
  std::vector<PipelineAction> all;
  const Split groups = groups_of(pipeline);
  for (int group = 0; group < groups.ranks(); ++group) {
    for (int64_t i = 0; i < pipeline.chunks; ++i) {
      const int64_t chunk = kind == Kind::forward ? i : pipeline.chunks - 1 - i;
      for (int64_t m = groups.range(group).begin; m < groups.range(group).end; ++m)
        all.push_back({kind, chunk, m});
    }
  }
  return all;
}

/// Returns how many forwards a stage runs before its first backward.
int64_t warm_up(const Pipeline& pipeline, int stage, int64_t forwards) {
  if (pipeline.schedule == PipelineSchedule::afab) return forwards;
  const int64_t later = pipeline.stages - 1 - stage;
  if (pipeline.chunks == 1) return std::min(later, forwards);
  return std::min(2 * later + (pipeline.chunks - 1) * groups_of(pipeline).range(0).size(), forwards);
}

}  // namespace

std::vector<PipelineAction> Pipeline::actions(int stage) const {
  const std::vector<PipelineAction> forwards = passes(*this, Kind::forward),
                                    backwards = passes(*this, Kind::backward);
  const auto count = static_cast<int64_t>(forwards.size()), before = warm_up(*this, stage, count);
  std::vector<PipelineAction> actions(forwards.begin(), forwards.begin() + before);
  for (int64_t i = before; i < count; ++i) {
    actions.push_back(forwards[i]);
    actions.push_back(backwards[i - before]);
  }
  actions.insert(actions.end(), backwards.end() - before, backwards.end());
  return actions;
}

int64_t Pipeline::most_in_flight(int stage) const {
  int64_t now = 0, most = 0;
  for (const PipelineAction& action : actions(stage))
    most = std::max(most, now += action.kind == Kind::forward ? 1 : -1);
  return most;
}

}  // namespace shardwise::base
