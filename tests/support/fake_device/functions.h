// The functions of ATen that the device has of its own.
#pragma once

namespace shardwise::fake_device {

/// Registers them, and the fallback for all others. Once per process.
void register_functions();

}  // namespace shardwise::fake_device
