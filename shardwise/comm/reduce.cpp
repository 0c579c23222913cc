#include "shardwise/comm/reduce.h"

#include <ATen/OpMathType.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "shardwise/base/isa.h"

namespace shardwise::comm {
namespace {

const ReduceKernels& kernels_for_this_cpu() {
  const base::Isa isa = base::best_isa();
  if (isa >= base::Isa::avx512) return avx512::reduce_kernels;
  return isa == base::Isa::avx2 ? avx2::reduce_kernels : baseline::reduce_kernels;
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
                        dtype, " [SW0512]");
  }
}

}  // namespace

ReduceKernel reduce_kernel(at::ScalarType dtype, Reduce reduce) {
  const ReduceKernel kernel = kernels_for_this_cpu().table[int(reduce)][int(element(dtype))];
  TORCH_CHECK_VALUE(kernel != nullptr, "reduction: ", name(reduce), " accepts ",
                    reduce == Reduce::average ? "floating-point dtypes" : "integers and bool", "; got ",
                    dtype, " [SW0513]");
  return kernel;
}

void sum_on_device(at::Tensor& out, const std::vector<at::Tensor>& partials) {
  const c10::NoGradGuard no_grad;
  at::Tensor total =
      partials.front().to(at::toOpMathType(out.scalar_type()), /*non_blocking=*/false, /*copy=*/true);
  for (size_t rank = 1; rank < partials.size(); ++rank) total.add_(partials[rank]);
  out.copy_(total);
}

}  // namespace shardwise::comm
