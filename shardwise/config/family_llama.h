// The common base of the families that derive from Llama. Only family_<name>.cpp includes this.
#pragma once
#include "shardwise/config/family.h"

namespace shardwise::config {

/// Returns a family with Llama's names, which stores q, k, v, gate and up as separate tensors.
Family llama_like(const std::string& model_type, const std::string& architecture, decltype(Family::read) read,
                  decltype(Family::write) write, decltype(Family::presets) presets);

}  // namespace shardwise::config
