// What --json says of a loaded model.
#pragma once
#include <nlohmann/json.hpp>

#include "shardwise/cli/loaded_model.h"

namespace shardwise::cli {

/// "int4 in groups of 128 (gptq)", or null.
inline nlohmann::ordered_json quantisation_json(const NamedModel& model) {
  const auto& quantisation = model.config().quantisation;
  return quantisation ? nlohmann::ordered_json(quantisation->text()) : nlohmann::ordered_json();
}

inline nlohmann::ordered_json load_json(const Loaded& loaded) {
  return {{"seconds", loaded.seconds},
          {"bytes_read", loaded.bytes_read},
          {"weight_bytes", loaded.weight_bytes},
          {"peak_bytes", loaded.peak_bytes}};
}

}  // namespace shardwise::cli
