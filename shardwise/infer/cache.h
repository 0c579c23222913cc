// The KV caches of generation and evaluation.
#pragma once
#include <optional>
#include <string>

#include "shardwise/model/decoder.h"

namespace shardwise::infer {

/// Returns the dtype of a cache for `weights`: `wanted`, or that of the weights for nullopt.
/// Errors: c10::ValueError, beginning with `where`, unless it is int8 (at::kChar) or that of the weights.
at::ScalarType cache_dtype(const std::string& where, const model::DecoderWeights& weights,
                           std::optional<at::ScalarType> wanted);

/// Allocates a cache for `capacity` tokens of one sequence, with this rank's KV heads in the layers of its
/// pipeline stage.
nn::Cache empty_cache(const model::DecoderWeights& weights, int64_t capacity, at::ScalarType dtype);

}  // namespace shardwise::infer
