// Conversions between the dtypes of tensors, safetensors files and config.json.
#pragma once
#include <c10/core/ScalarType.h>

#include <string>

#include "shardwise/io/dtype.h"

namespace shardwise::checkpoint {

/// Returns the dtype in the file. Errors: c10::ValueError, beginning with `where`, for a dtype that
/// checkpoints do not support.
io::Dtype file_dtype(at::ScalarType dtype, const std::string& where);

/// Returns whether weights may be stored in this dtype; a load converts them.
bool is_weight_dtype(io::Dtype dtype);
/// Returns the tensor dtype of a floating-point dtype or I32. Errors: TORCH_INTERNAL_ASSERT for any other.
at::ScalarType tensor_dtype(io::Dtype dtype);

/// Returns the dtype's name in config.json.
const char* config_dtype(at::ScalarType dtype);

}  // namespace shardwise::checkpoint
