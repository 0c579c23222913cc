#include "shardwise/kernels/widened_product.h"

#include <algorithm>

#include "shardwise/base/split.h"
#include "shardwise/kernels/bf16_product.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/kernels/widened_product_isa.h"

namespace shardwise::kernels {

using at::Tensor;

namespace {

/// Calls f(begin, end) in parallel for ranges of columns that begin at a panel.
template <class F>
void for_columns(int64_t columns, int64_t work_per_column, const F& f) {
  const int64_t panels = base::blocks_of({0, columns}, kWidenedColumns).size();
  for_ranges(panels, kWidenedColumns * work_per_column, [&](int64_t begin, int64_t end) {
    f(begin * kWidenedColumns, std::min(end * kWidenedColumns, columns));
  });
}

}  // namespace

bool widens_product(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == at::kBFloat16 && !has_bf16_products() && a.numel() > 0 && b.numel() > 0 &&
         a.stride(1) == 1 && (b.stride(1) == 1 || b.stride(0) == 1);
}

void widened_product_out(const Tensor& y, const Tensor& a, const Tensor& b) {
  const bool is_transposed = b.stride(1) != 1;
  const WidenedProduct<Bf16> product{elements_<Bf16>(y), y.stride(0), elements<Bf16>(a),
                                     elements<Bf16>(b),  a.stride(0), b.stride(is_transposed ? 1 : 0),
                                     is_transposed,      a.size(0),   a.size(1),
                                     b.size(1)};
  for_columns(product.columns, a.numel(), [&](int64_t begin, int64_t end) {
    widened_product_loops<Bf16>().multiply(product, begin, end);
  });
}

void add_widened_product_(const Tensor& main_grad, const Tensor& dy, const Tensor& x) {
  const WidenedGradient<Bf16> gradient{elements_<float>(main_grad),
                                       main_grad.size(1),
                                       elements<Bf16>(dy),
                                       elements<Bf16>(x),
                                       dy.size(1),
                                       x.size(1),
                                       dy.size(1),
                                       dy.size(0),
                                       x.size(1)};
  for_columns(gradient.columns, dy.numel(),
              [&](int64_t begin, int64_t end) { widened_product_loops<Bf16>().add(gradient, begin, end); });
}

}  // namespace shardwise::kernels
