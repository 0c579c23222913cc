// The device of inference, before any rank starts.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "shardwise/config/config.h"

namespace shardwise::cli {

/// Returns `device`, or cpu for auto if only the CPU can run the model with this cache.
/// Errors: c10::ValueError, beginning with `command`, if another device is named that cannot.
std::string inference_device(const std::string& command, const std::string& device,
                             const config::Config& config, std::optional<at::ScalarType> cache_dtype);

}  // namespace shardwise::cli
