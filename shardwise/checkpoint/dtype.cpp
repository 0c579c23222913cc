#include "shardwise/checkpoint/dtype.h"

#include <c10/util/Exception.h>

namespace shardwise::checkpoint {

io::Dtype file_dtype(at::ScalarType dtype, const std::string& where) {
  switch (dtype) {
    case at::kDouble:
      return io::Dtype::F64;
    case at::kFloat:
      return io::Dtype::F32;
    case at::kBFloat16:
      return io::Dtype::BF16;
    case at::kHalf:
      return io::Dtype::F16;
    default:
      TORCH_CHECK_VALUE(false, where, ": must be fp64, fp32, bf16 or fp16; got ", dtype, " [SW0245]");
  }
}

bool is_weight_dtype(io::Dtype dtype) {
  return dtype == io::Dtype::F64 || dtype == io::Dtype::F32 || dtype == io::Dtype::BF16 ||
         dtype == io::Dtype::F16;
}

at::ScalarType tensor_dtype(io::Dtype dtype) {
  switch (dtype) {
    case io::Dtype::F64:
      return at::kDouble;
    case io::Dtype::F32:
      return at::kFloat;
    case io::Dtype::BF16:
      return at::kBFloat16;
    case io::Dtype::F16:
      return at::kHalf;
    case io::Dtype::I32:
      return at::kInt;
    default:
      TORCH_INTERNAL_ASSERT(false, io::dtype_name(dtype), " is not a dtype of weights");
  }
}

const char* config_dtype(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return "bfloat16";
  if (dtype == at::kDouble) return "float64";
  return dtype == at::kHalf ? "float16" : "float32";
}

}  // namespace shardwise::checkpoint
