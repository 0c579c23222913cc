// What the emulator reports: code that CUDA leaves undefined, or that would hang a GPU.
#pragma once
#include <stdexcept>

namespace shardwise::emulator {

/// Names the fault, and the thread and block.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace shardwise::emulator
