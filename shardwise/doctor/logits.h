// Whether the model computes what its family's published formulas do.
#pragma once
#include <filesystem>

#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// The logits of the checkpoint in `directory` at TP=1 in fp64, read and computed as for generation, are
/// those of formula_logits, which has the tensors by their standard names: of sequences without padding, and
/// padded on either side. On one rank alone. Errors: those of checkpoint::load_weights and formula_logits.
Audit audit_logits(const std::filesystem::path& directory);

}  // namespace shardwise::doctor
