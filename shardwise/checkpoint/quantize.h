// Quantizes a model directory into a new directory in GPTQ's format.
#pragma once
#include <filesystem>

#include "shardwise/checkpoint/shard.h"
#include "shardwise/config/quantization.h"

namespace shardwise::checkpoint {

/// Writes `out`: one model.safetensors with the linear weights of `in` quantized (symmetric, round to
/// nearest) and copies of all other weights; a config.json with the quantization_config; copies of the
/// tokenizer and generation files.
/// Cost: 64 MB of memory.
/// Errors: c10::ValueError if `in` is already quantized, does not contain the weights of its config, has
/// sizes that the format does not support, or has a NaN or too large weight, and if `out` exists or its
/// parent does not; base::FileError if a write fails. Leaves no files behind on an error.
WriteSummary quantize(const std::filesystem::path& in, const std::filesystem::path& out,
                      const config::Quantization& how, const OnProgress& on_progress);

}  // namespace shardwise::checkpoint
