// What the families that grew from Llama start from. For the sources family_<name>.cpp only.
#pragma once
#include "shardwise/model/family.h"

namespace shardwise::model {

/// Llama's names: q, k and v, gate and up are tensors of their own. Without reading, writing and presets.
Family llama_like(const std::string& model_type, const std::string& architecture);

}  // namespace shardwise::model
