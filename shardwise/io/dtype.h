// The element types of safetensors files. Which tensor library's type each one is, the callers know.
#pragma once
#include <cstdint>
#include <string>

namespace shardwise::io {

/// Spelled as in the files.
enum class Dtype : uint8_t {
  F64,
  F32,
  F16,
  BF16,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  BOOL,
  F8_E4M3,
  F8_E5M2
};

/// Bytes per element.
int64_t itemsize(Dtype dtype);
const char* dtype_name(Dtype dtype);

/// Errors: c10::ValueError for a name that is none of the above; `where` begins the message.
Dtype dtype_from_name(const std::string& name, const std::string& where);

}  // namespace shardwise::io
