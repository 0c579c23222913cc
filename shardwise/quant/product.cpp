#include "shardwise/quant/product.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "shardwise/kernels/product.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::quant {

using at::Tensor;
using base::Range;

namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;  // fits a core's share of the last-level cache
constexpr int64_t kMinBlockRows = 64;              // with fewer rows the product would reuse too little

/// Depends only on the matrix, so that its product is bitwise the same on every rank.
int64_t rows_per_block(const Matrix& w, int64_t itemsize) {
  const int64_t row_bytes = std::max<int64_t>(w.width() * itemsize, 1);
  return std::clamp<int64_t>(kBlockBytes / row_bytes, kMinBlockRows, std::max(w.rows(), kMinBlockRows));
}

}  // namespace

void product_out(Tensor& y, const Tensor& x, const Matrix& w) {
  TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == w.width() && y.dim() == 2 && y.size(0) == x.size(0) &&
                        y.size(1) == w.rows() && y.scalar_type() == x.scalar_type(),
                    "quantized product: needs [m, ", w.width(), "] to [m, ", w.rows(), "] of one dtype; got ",
                    x.sizes(), " ", x.scalar_type(), " to ", y.sizes(), " ", y.scalar_type(), " [SW0468]");
  const int64_t step = rows_per_block(w, static_cast<int64_t>(x.itemsize()));
  const Tensor scratch = at::empty({std::min(step, w.rows()), w.width()}, x.options());
  for (int64_t row = 0; row < w.rows(); row += step) {
    const Range rows{row, std::min(row + step, w.rows())};
    Tensor dense = scratch.narrow(/*dim=*/0, 0, rows.size());
    dequantize_out(dense, w, rows);
    if (rows.size() == w.rows()) return kernels::product_out(y, x, dense.t());
    Tensor block = at::empty({x.size(0), rows.size()}, x.options());
    kernels::product_out(block, x, dense.t());
    y.narrow(/*dim=*/1, row, rows.size()).copy_(block);
  }
}

void embedding_out(Tensor& y, const Tensor& ids, const Matrix& w, int64_t begin) {
  kernels::check_on_cpu("quantized embedding", ids);
  const Tensor list = ids.reshape({-1}), rows = y.view({list.size(0), w.width()});
  const auto* id = list.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < list.size(0); ++i) {
    Tensor row = rows.narrow(/*dim=*/0, i, 1);
    const int64_t local = id[i] - begin;
    if (local >= 0 && local < w.rows()) {
      dequantize_out(row, w, {local, local + 1});
    } else {
      row.zero_();
    }
  }
}

}  // namespace shardwise::quant
