// From a directory of ordinary weights to one of quantized weights, in GPTQ's layout.
#pragma once
#include <filesystem>

#include "shardwise/checkpoint/shard.h"
#include "shardwise/model/config_quantization.h"

namespace shardwise::checkpoint {

/// Writes `out`: one model.safetensors with the linear weights of `in` in codes, symmetric, rounded to
/// nearest, and all others as they are; config.json says how, tokenizer and generation files are copied.
/// Cost: 64 MB of memory. Errors: c10::ValueError when `in` is quantized already, does not hold the weights
/// of its config, has sizes that the layout cannot hold, or a weight that is no number; when `out` exists or
/// its directory does not; base::FileError when the disk refuses. Nothing is left behind.
Written quantize(const std::filesystem::path& in, const std::filesystem::path& out,
                 const model::Quantization& how, const OnProgress& on_progress);

}  // namespace shardwise::checkpoint
