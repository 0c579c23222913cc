#include "tests/support/emulator/seat.h"

#include <sys/mman.h>

#include "tests/support/emulator/fault.h"

namespace shardwise::emulator {
namespace {

constexpr size_t kStackBytes = 128 << 10, kGuardBytes = 4096;  // a stack that overflows meets its guard

}  // namespace

Seats::~Seats() {
  for (const std::vector<Seat>& set : spare_)
    for (const Seat& seat : set) munmap(seat.begin - kGuardBytes, kStackBytes);
}

Seat Seats::take(int set) {
  if (!spare_[set].empty()) {
    const Seat seat = spare_[set].back();
    spare_[set].pop_back();
    unpoison(seat.stack());
    return seat;
  }
  void* const memory =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Fault("emulator: the system has no memory for a thread's stack");
  mprotect(memory, kGuardBytes, PROT_NONE);
  return {static_cast<char*>(memory) + kGuardBytes, kStackBytes - kGuardBytes, Clock::create()};
}

}  // namespace shardwise::emulator
