// What the families that grew from Llama start from. For the sources family_<name>.cpp only.
#pragma once
#include "shardwise/model/family.h"

namespace shardwise::model {

/// A family with Llama's names: q, k and v, gate and up are tensors of their own.
Family llama_like(const std::string& model_type, const std::string& architecture, decltype(Family::read) read,
                  decltype(Family::write) write, decltype(Family::presets) presets);

}  // namespace shardwise::model
