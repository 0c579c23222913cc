#include "tests/support/fake_device/open.h"

#include "tests/support/emulator/emulator.h"

namespace shardwise::fake_device {

Open::Open() : lock_(emulator::mutex()) {
  emulator::run_queued();
  Memory::instance().reclaim();
}

}  // namespace shardwise::fake_device
