// Products of a few rows with a weight: which threads share an output, and their sums. For *_cuda.cu.
//
// A team, which is a warp or the block, has some outputs. Its thread t has the packs t, t + lanes,
// t + 2·lanes, … of the columns. Only the packs of a row set the lanes, so that the bits of an output depend
// neither on the other rows of x nor on those of the weight.
#pragma once
#include <bit>
#include <type_traits>

#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {

inline constexpr int kTeamThreads = 128;  // of a block
inline constexpr int kMostTeamRows = 8;   // of x that are multiplied together
inline constexpr int kLoadsInFlight = 8;  // of the weight, by each thread

/// The running thread in its team, and the team's number among those that have the same rows of x.
struct Team {
  int lanes, lane, number;

  __device__ explicit Team(int of_lanes)
      : lanes(of_lanes),
        lane(static_cast<int>(threadIdx.x) & (of_lanes - 1)),
        number(static_cast<int>((blockIdx.x * kTeamThreads + threadIdx.x) / of_lanes)) {}
};

/// Returns the threads of a team: the block if each of its threads then has `least` packs of a row, or a
/// warp.
inline int team_lanes(int64_t packs, int least) {
  return packs >= int64_t{least} * kTeamThreads ? kTeamThreads : 32;
}

/// Returns the blocks for n outputs of which a team has `outputs`, and for m rows of which a block has
/// `rows`.
inline dim3 team_blocks(int64_t n, int64_t m, int lanes, int outputs, int rows) {
  const int64_t together = int64_t{kTeamThreads} / lanes * outputs;
  return {static_cast<unsigned>((n + together - 1) / together), static_cast<unsigned>((m + rows - 1) / rows)};
}

/// Calls run(std::integral_constant<int, rows>) with the rows of x that a block multiplies.
template <class Run>
void with_team_rows(int64_t m, const Run& run) {
  if (m == 1) return run(std::integral_constant<int, 1>{});
  if (m == 2) return run(std::integral_constant<int, 2>{});
  if (m <= 4) return run(std::integral_constant<int, 4>{});
  run(std::integral_constant<int, kMostTeamRows>{});
}

/// Returns how many rows of m a block has from `row` on.
__device__ inline int rows_from(int64_t row, int64_t m) {
  return m - row < kMostTeamRows ? static_cast<int>(m - row) : kMostTeamRows;
}

/// Loads 16 bytes by one instruction, whatever is used of them.
template <class T, int N>
__device__ Pack<T, N> load_pack(const Pack<T, N>* pack) {
  return std::bit_cast<Pack<T, N>>(*reinterpret_cast<const uint4*>(pack));
}
/// The same of bytes that nothing else reads: caches drop them first.
template <class T, int N>
__device__ Pack<T, N> load_once(const Pack<T, N>* pack) {
  return std::bit_cast<Pack<T, N>>(__ldcs(reinterpret_cast<const uint4*>(pack)));
}

/// Returns the sum of sums[i] over the warp to lane i · 32 / kCount, with the bits of warp_sum: while there
/// are several sums, half of the lanes goes on with half of them.
template <int kCount, int kBit = 16, int kSums>
__device__ float sum_of_lanes(float (&sums)[kSums]) {
  constexpr int kHalf = kCount / 2;
  // A constant would let g++ copy the shuffle into two branches, which the emulator takes for two shuffles.
  const auto is_upper = [] { return (threadIdx.x & kBit) != 0; };
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float other = __shfl_xor_sync(~0u, is_upper() ? sums[i] : sums[i + kHalf], kBit);
    sums[i] = (is_upper() ? sums[i + kHalf] : sums[i]) + other;
  }
  if constexpr (kHalf == 0) sums[0] += __shfl_xor_sync(~0u, sums[0], kBit);
  if constexpr (kBit > 1) return sum_of_lanes<(kHalf > 0 ? kHalf : 1), kBit / 2>(sums);
  return sums[0];
}

/// Calls store(i, sum over the team of sums[i]) in one thread for each i. All threads of the team must call
/// it.
template <int kCount, class Store>
__device__ void sum_of_team(float (&sums)[kCount], int lanes, const Store& store) {
  static_assert(kCount <= 32 && 32 % kCount == 0);
  constexpr int kWarps = kTeamThreads / 32, kEach = 32 / kCount;
  struct Sums {
    float of_warp[kWarps][kCount];
  };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float of_warp = sum_of_lanes<kCount>(sums);
  if (lanes == 32) {
    if (lane % kEach == 0) store(lane / kEach, of_warp);
    return;
  }
  auto& shared = block_shared<Sums>();
  if (lane % kEach == 0) shared.of_warp[warp][lane / kEach] = of_warp;
  __syncthreads();
  const int i = threadIdx.x;
  if (i >= kCount) return;
  float sum = shared.of_warp[0][i];
  for (int w = 1; w < kWarps; ++w) sum += shared.of_warp[w][i];
  store(i, sum);
}

/// Computes the team's outputs for kRows rows of x, of `n` outputs over `packs` packs. Product(p, row,
/// output) adds packs to its `sums` [outputs, rows].
template <class Product, int kRows, class Parameters>
__device__ void multiply_in_team(const Parameters& p, int n, int packs, int lanes) {
  constexpr int kDepth = kLoadsInFlight / Product::kTeamOutputs;
  const Team team(lanes);
  const int64_t row = int64_t{blockIdx.y} * kRows;
  const int output = team.number * Product::kTeamOutputs;
  if (output >= n) return;
  Product product(p, row, output);
  int pack = team.lane;
#pragma unroll 1
  for (; pack + (kDepth - 1) * lanes < packs; pack += kDepth * lanes)
    product.template add<kDepth>(pack, lanes);
#pragma unroll 1
  for (; pack < packs; pack += lanes) product.template add<1>(pack, lanes);
  sum_of_team(product.sums, lanes, [&](int i, float sum) {
    const int o = output + i / kRows;
    const int64_t r = row + i % kRows;
    if (o < n && r < p.m) p.y[r * n + o] = static_cast<std::remove_reference_t<decltype(*p.y)>>(sum);
  });
}

}  // namespace shardwise::kernels::cuda
