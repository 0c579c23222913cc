#include "shardwise/comm/reduce.h"

#include <c10/util/Exception.h>

#include "shardwise/base/mutation.h"

namespace shardwise::comm::shm {
namespace {

const ReduceKernels& kernels_for_this_cpu() {
  static const ReduceKernels& chosen = [&]() -> const ReduceKernels& {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      return avx512::reduce_kernels;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::reduce_kernels;
    return baseline::reduce_kernels;
  }();
  return chosen;
}

Element element(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return Element::f64;
    case at::kFloat:
      return Element::f32;
    case at::kBFloat16:
      return Element::bf16;
    case at::kHalf:
      return Element::f16;
    case at::kLong:
      return Element::i64;
    case at::kInt:
      return Element::i32;
    case at::kShort:
      return Element::i16;
    case at::kChar:
      return Element::i8;
    case at::kByte:
      return Element::u8;
    case at::kBool:
      return Element::boolean;
    default:
      TORCH_CHECK_VALUE(false,
                        "reduction: dtype must be float64, float32, bfloat16, float16, int64, int32, int16, "
                        "int8, uint8 or bool; got ",
                        dtype);
  }
}

}  // namespace

ReduceKernel reduce_kernel(at::ScalarType dtype, Reduce reduce) {
  Element of = element(dtype);
  if (base::mutated(base::Mutation::compare_bytes_unsigned) && of == Element::i8) of = Element::u8;
  const bool is_sum = base::mutated(base::Mutation::sum_for_average) && reduce == Reduce::average;
  const ReduceKernel kernel = kernels_for_this_cpu().table[int(is_sum ? Reduce::sum : reduce)][int(of)];
  TORCH_CHECK_VALUE(kernel != nullptr, "reduction: ", name(reduce), " accepts ",
                    reduce == Reduce::average ? "floating-point dtypes" : "integers and bool", "; got ",
                    dtype);
  return kernel;
}

}  // namespace shardwise::comm::shm
