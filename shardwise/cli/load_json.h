// The fields of --json about a loaded model.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "shardwise/cli/model_source.h"

namespace shardwise::cli {

/// Returns a string such as "int4 in groups of 128 (gptq)", or null for unquantized weights.
nlohmann::ordered_json quantization_json(const ModelSource& model);

/// Returns the seconds and bytes of loading.
nlohmann::ordered_json load_json(const checkpoint::LoadCost& cost);

}  // namespace shardwise::cli
