// Models and machines that a flag names: by the name of a built-in one, or as a file.
#pragma once
#include <string>

#include "shardwise/config/config.h"
#include "shardwise/plan/machine.h"

namespace shardwise::cli {

/// Returns the config of --model: a preset, or a directory or file with a config.json. Errors:
/// c10::ValueError naming `command`, as below; those of reading the file.
config::Config model_config_to_plan(const std::string& command, const std::string& model);
/// As model_config_to_plan, but refuses models that this library cannot run.
config::Config model_config_of(const std::string& command, const std::string& model);

/// Checks that the model of --model is not quantized.
void check_unquantized(const std::string& command, const config::Config& config);

/// Returns the machine of --machine: a built-in one, or a file of it.
plan::Machine machine_of(const std::string& command, const std::string& machine);

/// Checks that `machine` has as many devices as --ranks.
void check_devices(const std::string& command, const plan::Machine& machine, int64_t ranks);

}  // namespace shardwise::cli
