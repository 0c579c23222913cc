// The device of inference, before any rank starts.
#pragma once
#include <string>

#include "shardwise/cli/model_source.h"

namespace shardwise::cli {

/// Returns `device`, or cpu for auto if only the CPU can run the model.
/// Errors: c10::ValueError, beginning with `command`, if another device is named that cannot.
std::string inference_device(const std::string& command, const std::string& device, const ModelSource& model);

}  // namespace shardwise::cli
