#include "shardwise/kernels/bf16_product.h"

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "shardwise/kernels/bf16_pack_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

constexpr int64_t kPanel = 64;    // columns of x side by side: what the block product takes
constexpr int64_t kRows = 128;    // of main_grad per block product
constexpr int64_t kTerms = 1024;  // a block of dyᵀ and a panel of x of this depth fit the second-level cache

int64_t parts(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

// x in panels of 64 columns, each [pairs of terms, 64]; what is beyond the last column is never read.
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

// dyᵀ [o, pairs of terms].
at::Tensor transposed(const at::Tensor& dy) {
  const int64_t n = dy.size(0), columns = dy.size(1), pairs = parts(n, 2);
  const at::Tensor result = at::empty({columns, pairs}, dy.options().dtype(at::kInt));
  for_ranges(columns, n, [&](int64_t begin, int64_t end) {
    pack_loops<Bf16>().transposed_pairs(elements_<uint32_t>(result) + begin * pairs, pairs,
                                        elements<Bf16>(dy) + begin, columns, n, end - begin);
  });
  return result;
}

// The rows [begin, end) of main_grad.
void add_rows_(const at::Tensor& main_grad, const at::Tensor& dy_transposed, const at::Tensor& panels,
               int64_t begin, int64_t end) {
  const int64_t columns = main_grad.size(1), terms = 2 * dy_transposed.size(1);
  const auto* a = elements<at::BFloat16>(dy_transposed);
  const auto* b = elements<at::BFloat16>(panels);
  for (int64_t term = 0; term < terms; term += kTerms) {
    for (int64_t panel = 0; panel < panels.size(0); ++panel) {
      for (int64_t row = begin; row < end; row += kRows) {
        at::native::cpublas::brgemm(std::min(kRows, end - row), std::min(kPanel, columns - panel * kPanel),
                                    std::min(kTerms, terms - term),
                                    /*ld_a=*/terms, /*ld_b=*/kPanel, /*ld_c=*/columns, /*add_C=*/true,
                                    a + row * terms + term, b + (panel * terms + term) * kPanel,
                                    elements_<float>(main_grad) + row * columns + panel * kPanel,
                                    /*is_vnni=*/true);
      }
    }
  }
  at::native::cpublas::brgemm_release();
}

}  // namespace

bool has_bf16_products() {
  return best_isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
}

void add_bf16_product_(const at::Tensor& main_grad, const at::Tensor& dy, const at::Tensor& x) {
  if (main_grad.numel() == 0 || dy.size(0) == 0) return;
  const at::Tensor dy_transposed = transposed(dy), panels = panels_of(x);
  for_ranges(parts(main_grad.size(0), kRows), kRows * x.numel(), [&](int64_t begin, int64_t end) {
    add_rows_(main_grad, dy_transposed, panels, begin * kRows, std::min(end * kRows, main_grad.size(0)));
  });
}

}  // namespace shardwise::kernels
