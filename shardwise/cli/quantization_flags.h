// Conversion of --bits, --group-size, --head and --activations to a config::Quantization.
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

/// What --activations does, for its help.
inline constexpr const char* kActivationsHelp =
    "of products with quantized weights: precise (16 bits), or int8 with a scale for up to 128 features, "
    "which is faster and changes results [precise]";

/// Rounds activations as `activations` says: precise or int8. Errors: c10::ValueError beginning with
/// `command` for other values, and for int8 without quantized weights or on a processor without AVX-512 VNNI.
void set_activations_(std::optional<config::Quantization>& quantization, const std::string& command,
                      const std::string& activations);

}  // namespace shardwise::cli
