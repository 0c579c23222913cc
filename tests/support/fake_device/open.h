// Access of the host to the device's memory.
#pragma once
#include <mutex>

#include "tests/support/fake_device/memory.h"

namespace shardwise::fake_device {

/// While one lives, the host may touch the device's memory. At first it waits for what is queued, so that it
/// sees finished results; what is queued later may run at any time. They nest. Other threads that use the
/// device wait for its end, so it must not live during a backward pass, which runs in another thread. Errors:
/// emulator::Fault of a kernel; then the memory is closed.
class Open {
 public:
  Open();
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
  Access access_;
};

}  // namespace shardwise::fake_device
