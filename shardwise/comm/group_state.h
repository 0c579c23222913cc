// The state that copies of a Group share. For group*.cpp only.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/comm/group.h"

namespace shardwise::comm {

struct Group::State {
  c10::intrusive_ptr<c10d::Backend> backend;  // null for a group of one
  std::shared_ptr<SymmetricHeap> heap;        // null where the backend has none
  bool use_heap = false;
  /// The number of asynchronous operations started, equal on all ranks. Copies of a group count together,
  /// because their operations may be in flight at the same time.
  std::shared_ptr<uint64_t> async_operations = std::make_shared<uint64_t>(0);
  std::shared_ptr<Counters> counters = std::make_shared<Counters>();

  SymmetricHeap* symmetric_heap() const { return use_heap ? heap.get() : nullptr; }
};

}  // namespace shardwise::comm
