#include "tests/support/fake_device/device.h"

#include <mutex>

#include "tests/support/emulator/emulator.h"
#include "tests/support/fake_device/allocator.h"
#include "tests/support/fake_device/functions.h"
#include "tests/support/fake_device/guard.h"
#include "tests/support/fake_device/hooks.h"

namespace shardwise::fake_device {
namespace {

/// torch keeps the objects that it is given for ever.
void register_device() {
  c10::register_privateuse1_backend("emulated");
  c10::SetAllocator(kDeviceType, &allocator());
  static const c10::impl::DeviceGuardImplRegistrar guard(kDeviceType, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  register_functions();
  emulator::set_runner([](const std::function<void()>& run) {
    const Access access;
    run();
  });
}

}  // namespace

void install() {
  static std::once_flag once;
  std::call_once(once, register_device);
}

}  // namespace shardwise::fake_device
