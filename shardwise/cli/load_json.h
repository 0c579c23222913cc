// The fields of --json about a loaded model.
#pragma once
#include <nlohmann/json.hpp>

#include "shardwise/cli/model_source.h"

namespace shardwise::cli {

/// Returns a string such as "int4 in groups of 128 (gptq)", or null for unquantized weights.
inline nlohmann::ordered_json quantization_json(const ModelSource& model) {
  const auto& quantization = model.config().quantization;
  return quantization ? nlohmann::ordered_json(quantization->text()) : nlohmann::ordered_json();
}

inline nlohmann::ordered_json load_json(const checkpoint::LoadCost& cost) {
  return {{"seconds", cost.seconds},
          {"bytes_read", cost.bytes_read},
          {"weight_bytes", cost.weight_bytes},
          {"peak_bytes", cost.peak_bytes}};
}

}  // namespace shardwise::cli
