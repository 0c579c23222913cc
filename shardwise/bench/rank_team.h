// The first ranks of a job as a group of their own, to measure several numbers of ranks in one run.
#pragma once
#include <optional>

#include "shardwise/comm/group.h"

namespace shardwise::bench {

/// The first `ranks` ranks of a job. The others wait while these work.
struct RankTeam {
  int64_t ranks;
  std::optional<comm::Group> group;  // nullopt: this rank is not one of them
  bool is_oversubscribed;            // more threads than cores; known on the team's ranks alone
};

}  // namespace shardwise::bench
