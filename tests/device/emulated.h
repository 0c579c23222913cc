// The emulated device, for tests: its group, and what it was made to do.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "shardwise/comm/group.h"
#include "shardwise/device/device.h"

namespace shardwise::testing {

/// Returns a group of one rank on the emulated device, or of the ranks of `host`.
inline comm::Group on_emulated(const comm::Group& host = comm::Group()) {
  return device::connect("emulated", host);
}

/// Calls the plugin's function `name`, of integers.
template <class... Arguments>
int64_t call_emulated(const char* name, Arguments... arguments) {
  void* const plugin = dlopen("shardwise_emulated.so", RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(plugin != nullptr, "the emulated device must be open");
  auto* const function = reinterpret_cast<int64_t (*)(Arguments...)>(dlsym(plugin, name));
  TORCH_CHECK(function != nullptr, "no ", name);
  return function(arguments...);
}
/// Returns how often the host has waited for a value of the device so far.
inline int64_t emulated_reads() {
  return call_emulated("shardwise_emulated_reads");
}
/// Returns the number of kernels that were launched so far.
inline int64_t emulated_launches() {
  return call_emulated("shardwise_emulated_launches");
}
/// Sets the size of the device's memory.
inline void set_emulated_capacity(int64_t bytes) {
  call_emulated("shardwise_emulated_set_capacity", bytes);
}

}  // namespace shardwise::testing
