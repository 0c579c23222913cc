// Checks that the model's logits match the published formulas of its family.
#pragma once
#include <filesystem>

#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Checks the logits of the checkpoint in `directory` at TP=1 in fp64, loaded and computed as for generation,
/// against formula_logits: of sequences without padding, and padded on either side. Not collective. Errors:
/// those of checkpoint::load_weights and formula_logits.
Check check_logits(const std::filesystem::path& directory);

}  // namespace shardwise::doctor
