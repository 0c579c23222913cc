#include "shardwise/kernels/product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "shardwise/kernels/isa.h"

// Exported by libtorch_cpu 2.11 without a header: result = alpha·mat1·mat2 + beta·result, strides respected.
namespace at::native {
TORCH_API void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta,
                             float alpha);
}

namespace shardwise::kernels {

using at::Tensor;

namespace {

/// Below this many multiplications, setting oneDNN up costs more than it gains.
constexpr int64_t kWorthOneDnn = int64_t{1} << 20;

void check_product(const Tensor& y, const Tensor& a, const Tensor& b) {
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && y.is_contiguous() &&
                        y.sizes() == at::IntArrayRef({a.size(0), b.size(1)}),
                    "product: needs [m, k]·[k, n] = [m, n]; got ", a.sizes(), "·", b.sizes(), " = ",
                    y.sizes());
  TORCH_CHECK_VALUE(a.scalar_type() == b.scalar_type() && a.scalar_type() == y.scalar_type(),
                    "product: needs one dtype; got ", a.scalar_type(), "·", b.scalar_type(), " = ",
                    y.scalar_type());
}

bool uses_onednn(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == at::kFloat && best_isa() == Isa::avx512 &&
         a.size(0) * a.size(1) * b.size(1) >= kWorthOneDnn;
}

}  // namespace

void product_out(Tensor& y, const Tensor& a, const Tensor& b) {
  check_product(y, a, b);
  if (uses_onednn(a, b)) {
    at::native::mkldnn_matmul(a, b, y, /*beta=*/0, /*alpha=*/1);
  } else {
    at::mm_out(y, a, b);
  }
}

void add_product_(Tensor& y, const Tensor& a, const Tensor& b) {
  check_product(y, a, b);
  if (uses_onednn(a, b)) {
    at::native::mkldnn_matmul(a, b, y, /*beta=*/1, /*alpha=*/1);
  } else {
    y.addmm_(a, b);
  }
}

}  // namespace shardwise::kernels
