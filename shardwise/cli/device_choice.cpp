#include "shardwise/cli/device_choice.h"

namespace shardwise::cli {

namespace {

void check_panel_device(const std::string& command, const ModelSource& model, const std::string& device) {
  TORCH_CHECK_VALUE(!model.maps_panels() || device == "cpu", command,
                    ": weights packed for a processor must be on the CPU; got ", device,
                    "; use --device cpu [SW0853]");
}

}  // namespace

std::string inference_device(const std::string& command, const std::string& device,
                             const ModelSource& model) {
  try {
    check_panel_device(command, model, device);
    model::check_weight_device(command, model.config(), device);
    return device;
  } catch (const c10::ValueError&) {
    if (device == "auto") return "cpu";
    throw;
  }
}

}  // namespace shardwise::cli
