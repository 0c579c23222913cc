#include "tests/support/fake_device/counts.h"

#include <c10/util/Exception.h>

#include <mutex>

#include "tests/support/emulator/emulator.h"

namespace shardwise::fake_device {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

/// `launches` is how many there were at the last reset.
Counts& counted() {
  static Counts& counts = *new Counts;
  return counts;
}

}  // namespace

Counts counts() {
  const Lock lock(emulator::mutex());
  Counts since = counted();
  since.launches = emulator::launches() - since.launches;
  return since;
}

void reset_counts() {
  const Lock lock(emulator::mutex());
  counted() = {};
  counted().launches = emulator::launches();
}

void count_read() {
  const Lock lock(emulator::mutex());
  TORCH_CHECK(!emulator::is_capturing(), "the host waits for the device while a graph is captured");
  ++counted().reads;
}

void count_capture() {
  const Lock lock(emulator::mutex());
  ++counted().captures;
}

void count_replay() {
  const Lock lock(emulator::mutex());
  ++counted().replays;
}

void count_fallback(const std::string& name) {
  const Lock lock(emulator::mutex());
  ++counted().fallbacks[name];
}

}  // namespace shardwise::fake_device
