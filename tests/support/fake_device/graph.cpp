#include "tests/support/fake_device/graph.h"

#include "tests/support/fake_device/counts.h"
#include "tests/support/fake_device/device.h"
#include "tests/support/fake_device/memory.h"
#include "tests/support/fake_device/open.h"

namespace shardwise::fake_device {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

void release(const std::vector<void*>& blocks) {
  for (void* const block : blocks) Memory::instance().release(block);
}

}  // namespace

Graph::Graph(const std::function<void()>& queue_work) {
  const Lock lock(emulator::mutex());
  emulator::begin_capture();
  Memory::instance().keep_released();
  try {
    queue_work();
  } catch (...) {
    emulator::end_capture();
    release(Memory::instance().keep_none());
    throw;
  }
  count_capture();
  operations_ = emulator::end_capture();
  kept_ = Memory::instance().keep_none();
}

Graph::~Graph() {
  const Lock lock(emulator::mutex());
  operations_.clear();
  release(kept_);
}

void Graph::replay() const {
  count_replay();
  emulator::replay(operations_);
}

void run_or_record(const std::function<void()>& work) {
  if (emulator::is_capturing()) {
    emulator::queue(stream(), work);
  } else {
    const Open open;
    work();
  }
}

}  // namespace shardwise::fake_device
