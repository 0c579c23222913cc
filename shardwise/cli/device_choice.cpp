#include "shardwise/cli/device_choice.h"

#include "shardwise/infer/cache.h"

namespace shardwise::cli {

std::string inference_device(const std::string& command, const std::string& device,
                             const config::Config& config, std::optional<at::ScalarType> cache_dtype) {
  try {
    model::check_weight_device(command, config, device);
    infer::check_cache_device(command, cache_dtype, device);
    return device;
  } catch (const c10::ValueError&) {
    if (device == "auto") return "cpu";
    throw;
  }
}

}  // namespace shardwise::cli
