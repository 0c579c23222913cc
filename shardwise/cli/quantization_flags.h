// How weights are to be quantized, as flags say it.
#pragma once
#include <optional>
#include <string>

#include "shardwise/model/config_quantization.h"

namespace shardwise::cli {

/// `bits` 8: a scale for each row, or for each group; 4: for each group. Errors: c10::ValueError beginning
/// with `command` for other bits, or a --group-size that is not 32, 64 or 128.
model::Quantization quantization_of(const std::string& command, int64_t bits,
                                    const std::optional<int64_t>& group_size);

}  // namespace shardwise::cli
