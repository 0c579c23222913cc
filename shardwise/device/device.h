// The device on which the ranks of a run compute.
#pragma once
#include <string>
#include <vector>

#include "shardwise/comm/group.h"

namespace shardwise::device {

/// The names of devices: cpu; cuda, a GPU for each rank; emulated, kernels for GPUs on the CPU, for tests;
/// and auto, cuda if there is a GPU, else cpu.
const std::vector<std::string>& names();

/// Checks the name of a device. Errors: c10::ValueError if there is none of that name.
void check_name(const std::string& command, const std::string& name);

/// Returns a group of the ranks of `host`, whose tensors are on the CPU, with tensors on the named device.
/// Collective. Nothing in the process may have asked ATen for CUDA before (docs/adr/0020).
/// Errors: base::CollectiveError if there is no such device, or not one for each rank.
comm::Group connect(const std::string& name, const comm::Group& host);

}  // namespace shardwise::device
