#include "shardwise/cli/model_input.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "shardwise/base/error.h"
#include "shardwise/plan/machine_file.h"

namespace shardwise::cli {

config::Config model_config_to_plan(const std::string& command, const std::string& model) {
  const auto names = config::preset_names_to_plan();
  if (std::ranges::count(names, model) > 0) return config::preset_to_plan(model);
  TORCH_CHECK_VALUE(std::filesystem::exists(model), command,
                    ": --model must be a directory or file with a config.json, or one of ",
                    fmt::format("{}", fmt::join(names, ", ")), "; got ", base::shortened(model), " [SW0758]");
  return config::load_config_to_plan(model);
}

config::Config model_config_of(const std::string& command, const std::string& model) {
  config::Config config = model_config_to_plan(command, model);
  TORCH_CHECK_VALUE(!can_only_be_planned(config), command,
                    ": --model must have neither experts nor latent attention, of which only memory and time "
                    "are planned; got model_type ",
                    config.model_type, " [SW0813]");
  return config;
}

void check_unquantized(const std::string& command, const config::Config& config) {
  TORCH_CHECK_VALUE(!config.quantization, command, ": --model must be unquantized; got ",
                    config.quantization ? config.quantization->text() : "", " [SW0801]");
}

plan::Machine machine_of(const std::string& command, const std::string& machine) {
  const std::vector<std::string> names = plan::machine_names();
  if (std::ranges::count(names, machine) > 0) return plan::built_in_machine(machine);
  TORCH_CHECK_VALUE(std::filesystem::exists(machine), command, ": --machine must be a file or one of ",
                    fmt::to_string(fmt::join(names, ", ")), "; got ", base::shortened(machine), " [SW0754]");
  return plan::read_machine(machine);
}

void check_devices(const std::string& command, const plan::Machine& machine, int64_t ranks) {
  TORCH_CHECK_VALUE(machine.across_nodes || ranks <= machine.devices_per_node, command,
                    ": --ranks must be at most the ", machine.devices_per_node,
                    " devices of a machine without across_nodes; got ", ranks, " [SW0767]");
}

}  // namespace shardwise::cli
