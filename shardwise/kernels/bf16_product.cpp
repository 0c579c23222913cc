#include "shardwise/kernels/bf16_product.h"

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "shardwise/kernels/bf16_pack_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

constexpr int64_t kPanel = 64;    // columns of x per block product
constexpr int64_t kRows = 128;    // rows of main_grad per block product
constexpr int64_t kDepth = 1024;  // a block of dyᵀ and a panel of x of this depth fit the second-level cache

int64_t parts(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// Packs x into panels of 64 columns, each [n/2 pairs, 64]. Padding columns are uninitialized.
at::Tensor panels_of(const at::Tensor& x) {
  const int64_t n = x.size(0), columns = x.size(1), pairs = parts(n, 2);
  const at::Tensor panels = at::empty({parts(columns, kPanel), pairs, kPanel}, x.options().dtype(at::kInt));
  for_ranges(panels.size(0), n * kPanel, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kPanel;
      pack_loops<Bf16>().pairs(elements_<uint32_t>(panels) + panel * pairs * kPanel, kPanel,
                               elements<Bf16>(x) + first, columns, n, std::min(kPanel, columns - first));
    }
  });
  return panels;
}

// Adds the product to the rows [begin, end) of main_grad. Transposes dy in blocks that stay in the cache.
void add_rows_(const at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& panels, int64_t begin,
               int64_t end) {
  const int64_t columns = main_grad.size(1), n = dy.size(0), pairs = parts(n, 2), depth = 2 * pairs;
  const at::Tensor block = at::empty({kRows, pairs}, dy.options().dtype(at::kInt));
  const auto* a = elements<at::BFloat16>(block);
  const auto* b = elements<at::BFloat16>(panels);
  for (int64_t row = begin; row < end; row += kRows) {
    const int64_t rows = std::min(kRows, end - row);
    pack_loops<Bf16>().transposed_pairs(elements_<uint32_t>(block), pairs, elements<Bf16>(dy) + row,
                                        dy.size(1), n, rows);
    for (int64_t k = 0; k < depth; k += kDepth) {
      for (int64_t panel = 0; panel < panels.size(0); ++panel) {
        at::native::cpublas::brgemm(
            rows, std::min(kPanel, columns - panel * kPanel), std::min(kDepth, depth - k),
            /*ld_a=*/depth, /*ld_b=*/kPanel, /*ld_c=*/columns, /*add_C=*/true, a + k,
            b + (panel * depth + k) * kPanel, elements_<float>(main_grad) + row * columns + panel * kPanel,
            /*is_vnni=*/true);
      }
    }
  }
  at::native::cpublas::brgemm_release();
}

}  // namespace

bool has_bf16_products() {
  return base::best_isa() >= base::Isa::avx512_bf16;
}

int64_t weight_gradient_operand_bytes() {
  return has_bf16_products() ? 2 : 0;
}

void add_bf16_product_(const at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& x) {
  if (main_grad.numel() == 0 || dy.size(0) == 0) return;
  const at::Tensor panels = panels_of(x);
  for_ranges(parts(main_grad.size(0), kRows), kRows * x.numel(), [&](int64_t begin, int64_t end) {
    add_rows_(main_grad, dy, panels, begin * kRows, std::min(end * kRows, main_grad.size(0)));
  });
}

}  // namespace shardwise::kernels
