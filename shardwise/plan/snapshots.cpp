#include "shardwise/plan/snapshots.h"

#include "shardwise/plan/transient_buffers.h"

namespace shardwise::plan {

void append(MemorySnapshots& snapshots, const MemorySnapshots& more, const Allocations& live) {
  for (const MemorySnapshot& snapshot : more)
    snapshots.push_back({snapshot.name, concat(live, snapshot.allocations)});
}

}  // namespace shardwise::plan
