#include "shardwise/kernels/row_product_cuda.h"

#include "shardwise/kernels/product_team_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// A team's outputs: with several rows of x, more outputs share the loads and conversions of x.
template <int kRows>
inline constexpr int kOutputs = kRows < 4 ? 2 : 4;

/// Packs of a row that each thread has at least if its team is the block.
constexpr int kLeastPacks = 4;

/// Sums of a thread's products. `x` and `w` are its rows' offsets in packs; those beyond the last row or
/// output are the last's again, and their sums are not stored.
template <class T, int kRows>
struct TeamProduct {
  static constexpr int N = 16 / sizeof(T), kTeamOutputs = kOutputs<kRows>;
  const Pack<T, N>*x_packs, *w_packs;
  int x[kRows];
  int64_t w[kTeamOutputs];
  float sums[kTeamOutputs * kRows] = {};

  __device__ TeamProduct(const RowProduct<T>& p, int64_t row, int output)
      : x_packs(as_packs<N>(p.x + row * p.k)), w_packs(as_packs<N>(p.w)) {
    const int packs = p.k / N;
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = packs * (row + r < p.m ? r : static_cast<int>(p.m - row - 1));
#pragma unroll
    for (int o = 0; o < kTeamOutputs; ++o) w[o] = int64_t{packs} * (output + o < p.n ? output + o : p.n - 1);
  }

  /// Adds the products of kDepth packs from `pack` on.
  template <int kDepth>
  __device__ void add(int pack, int lanes) {
    Pack<T, N> of_w[kDepth][kTeamOutputs];
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int o = 0; o < kTeamOutputs; ++o) of_w[d][o] = load_once(w_packs + w[o] + pack + d * lanes);
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Pack<T, N> of_x = load_pack(x_packs + x[r] + pack + d * lanes);
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
          for (int o = 0; o < kTeamOutputs; ++o)
            sums[o * kRows + r] = fmaf(static_cast<float>(of_x.at[i]), static_cast<float>(of_w[d][o].at[i]),
                                       sums[o * kRows + r]);
      }
  }
};

template <class T, int kRows>
__global__ void __launch_bounds__(kTeamThreads) row_product_packs(RowProduct<T> p, int lanes) {
  using Product = TeamProduct<T, kRows>;
  multiply_in_team<Product, kRows>(p, p.n, p.k / Product::N, lanes);
}

/// Rows that packs do not fit: the same sums, with loads of one element. A team has one output.
template <class T>
__global__ void __launch_bounds__(kTeamThreads) row_product_any(RowProduct<T> p, int lanes) {
  constexpr int kPack = 16 / sizeof(T);
  const Team team(lanes);
  const int64_t row = int64_t{blockIdx.y} * kMostTeamRows;
  const int rows = rows_from(row, p.m);
  if (team.number >= p.n) return;
  const T *const x = p.x + row * p.k, *const w = p.w + int64_t{team.number} * p.k;
  float sums[kMostTeamRows] = {};
#pragma unroll 1
  for (int64_t first = int64_t{team.lane} * kPack; first < p.k; first += int64_t{lanes} * kPack)
#pragma unroll 1
    for (int64_t i = first; i < first + kPack && i < p.k; ++i) {
      const float of_w = static_cast<float>(w[i]);
      const T* of_x = x + i;
#pragma unroll
      for (int r = 0; r < kMostTeamRows; ++r, of_x += p.k)
        if (r < rows) sums[r] = fmaf(static_cast<float>(*of_x), of_w, sums[r]);
    }
  sum_of_team(sums, lanes, [&](int r, float sum) {
    if (r < rows) p.y[(row + r) * p.n + team.number] = static_cast<T>(sum);
  });
}

}  // namespace

template <class T>
void row_product(const RowProduct<T>& p, cudaStream_t stream) {
  constexpr int kPack = 16 / sizeof(T);
  if (p.m == 0 || p.n == 0) return;
  const int lanes = team_lanes((int64_t{p.k} + kPack - 1) / kPack, kLeastPacks);
  if (!is_aligned(p.x) || !is_aligned(p.w) || p.k % kPack != 0)
    return launch(row_product_any<T>, team_blocks(p.n, p.m, lanes, /*outputs=*/1, kMostTeamRows),
                  kTeamThreads, stream, p, lanes);
  with_team_rows(p.m, [&](auto rows) {
    launch(row_product_packs<T, rows>, team_blocks(p.n, p.m, lanes, kOutputs<rows>, rows), kTeamThreads,
           stream, p, lanes);
  });
}
template void row_product(const RowProduct<float>&, cudaStream_t);
template void row_product(const RowProduct<__nv_bfloat16>&, cudaStream_t);
template void row_product(const RowProduct<__half>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
