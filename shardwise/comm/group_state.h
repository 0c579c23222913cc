// What the copies of a Group share. For group*.cpp only.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/comm/group.h"

namespace shardwise::comm {

struct Group::State {
  c10::intrusive_ptr<c10d::Backend> backend;  // null for a group of one
  std::shared_ptr<SymmetricHeap> shared;      // null where the backend has none
  bool use_shared = false;
  /// So far, the same on all ranks; of the copies together, whose sums may be under way side by side.
  std::shared_ptr<uint64_t> begun_sums = std::make_shared<uint64_t>(0);
  std::shared_ptr<Counters> counters = std::make_shared<Counters>();

  SymmetricHeap* symmetric_heap() const { return use_shared ? shared.get() : nullptr; }
};

}  // namespace shardwise::comm
