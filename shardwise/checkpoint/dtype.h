// Element types: as tensors have them, as files spell them.
#pragma once
#include <c10/core/ScalarType.h>

#include <string>

#include "shardwise/io/dtype.h"

namespace shardwise::checkpoint {

/// Errors: c10::ValueError for a type that no checkpoint holds; `where` begins the message.
io::Dtype file_dtype(at::ScalarType dtype, const std::string& where);

/// Whether weights may be stored so: converted on loading.
bool is_weight_dtype(io::Dtype dtype);
/// Of a floating-point type, or of words. Errors: TORCH_INTERNAL_ASSERT for any other.
at::ScalarType tensor_dtype(io::Dtype dtype);

/// As config.json spells it, which knows nothing wider than float32.
const char* config_dtype(at::ScalarType dtype);

}  // namespace shardwise::checkpoint
