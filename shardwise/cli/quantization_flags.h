// Conversion of --bits, --group-size and --head to a config::Quantization.
#pragma once
#include <optional>
#include <string>

#include "shardwise/config/config.h"

namespace shardwise::cli {

/// Returns int8 with a scale per row or per group (`bits` 8), or int4 with a scale per group (`bits` 4).
/// Errors: c10::ValueError beginning with `command` for other bits, or a --group-size other than 32, 64 and
/// 128.
config::Quantization quantization_of(const std::string& command, int64_t bits,
                                     const std::optional<int64_t>& group_size);

/// Returns the quantization of a load with --quantize `name`, int8 or int4, in which the embedding has the
/// format of lm_head. Errors: those of quantization_of and set_head_.
config::Quantization quantization_on_load(const std::string& command, const std::string& name,
                                          const std::optional<int64_t>& group_size, const std::string& head,
                                          const config::Config& model);

/// Quantizes lm_head as `head` says: int8 with a scale per row; int4, which must be the layers' format; or
/// none. Errors: c10::ValueError beginning with `command` for other values.
void set_head_(config::Quantization& quantization, const std::string& command, const std::string& head);

}  // namespace shardwise::cli
