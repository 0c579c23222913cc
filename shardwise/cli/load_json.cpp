#include "shardwise/cli/load_json.h"

#include <nlohmann/json.hpp>

namespace shardwise::cli {

nlohmann::ordered_json quantization_json(const ModelSource& model) {
  const auto& quantization = model.config().quantization;
  return quantization ? nlohmann::ordered_json(quantization->text()) : nlohmann::ordered_json();
}

nlohmann::ordered_json load_json(const checkpoint::LoadCost& cost) {
  return {{"seconds", cost.seconds},
          {"bytes_read", cost.bytes_read},
          {"weight_bytes", cost.weight_bytes},
          {"mapped_bytes", cost.mapped_bytes},
          {"peak_bytes", cost.peak_bytes}};
}

}  // namespace shardwise::cli
