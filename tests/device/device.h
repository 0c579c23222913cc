// The device under test: the emulated one, or the one that SHARDWISE_TEST_DEVICE names (make test-gpu).
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "shardwise/comm/group.h"
#include "shardwise/device/device.h"

namespace shardwise::testing {

/// Returns the name of the device, as --device takes it.
inline std::string device_name() {
  const char* const other = std::getenv("SHARDWISE_TEST_DEVICE");
  return other != nullptr ? other : "emulated";
}
/// Returns whether it counts what it does.
inline bool is_emulated() {
  return device_name() == "emulated";
}
/// Returns the numbers of ranks that are tested on it: of another than the emulated one there may be only
/// one, unless SHARDWISE_TEST_RANKS is 2.
inline std::vector<std::string> device_ranks() {
  const char* const ranks = std::getenv("SHARDWISE_TEST_RANKS");
  if (is_emulated() || (ranks != nullptr && ranks == std::string("2"))) return {"1", "2"};
  return {"1"};
}
/// Returns a group of one rank on the device, or of the ranks of `host`.
inline comm::Group on_device(const comm::Group& host = comm::Group()) {
  return device::connect(device_name(), host);
}

/// Calls a function of the emulated device's plugin, of integers.
template <class... Arguments>
int64_t call_emulated(const char* name, Arguments... arguments) {
  void* const plugin = dlopen("shardwise_emulated.so", RTLD_NOW | RTLD_NOLOAD);
  TORCH_CHECK(plugin != nullptr, "the emulated device must be open");
  auto* const function = reinterpret_cast<int64_t (*)(Arguments...)>(dlsym(plugin, name));
  TORCH_CHECK(function != nullptr, "no ", name);
  return function(arguments...);
}
/// Returns how often the host has waited for a value of the device so far; 0 unless it is emulated.
inline int64_t emulated_reads() {
  return !is_emulated() ? 0 : call_emulated("shardwise_emulated_reads");
}
/// Returns the number of kernels that were launched so far; 0 unless it is emulated.
inline int64_t emulated_launches() {
  return !is_emulated() ? 0 : call_emulated("shardwise_emulated_launches");
}
/// Return how often graphs were captured and replayed so far; 0 unless it is emulated.
inline int64_t emulated_captures() {
  return !is_emulated() ? 0 : call_emulated("shardwise_emulated_captures");
}
inline int64_t emulated_replays() {
  return !is_emulated() ? 0 : call_emulated("shardwise_emulated_replays");
}
/// Sets the size of the device's memory.
inline void set_emulated_capacity(int64_t bytes) {
  call_emulated("shardwise_emulated_set_capacity", bytes);
}

}  // namespace shardwise::testing
