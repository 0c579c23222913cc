// The element types of safetensors files. Callers map them to the tensor library's types.
#pragma once
#include <cstdint>
#include <string>

namespace shardwise::io {

/// An element type, spelled as in the files.
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

/// Returns the bytes per element.
int64_t itemsize(Dtype dtype);
const char* dtype_name(Dtype dtype);

/// Parses a dtype name. Errors: c10::ValueError beginning with `where` if the name is unknown.
Dtype dtype_from_name(const std::string& name, const std::string& where);

}  // namespace shardwise::io
