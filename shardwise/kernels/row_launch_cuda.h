// Which kernel takes the rows of a tensor: one that holds a row in registers, or one for any rows. For
// *_cuda.cu.
#pragma once
#include <type_traits>

#include "shardwise/kernels/row_cuda.h"

namespace shardwise::kernels::cuda {

template <class T>
bool is_aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

inline int whole_warps(int threads) {
  return (threads + 31) / 32 * 32;
}

/// Calls run(std::integral_constant<int, packs>, threads) with the fewest packs a thread that hold a row, or
/// otherwise() if none of at most kMostElements elements do.
template <class T, int kMostElements, class Run, class Otherwise>
void with_packs(int h, bool are_aligned, const Run& run, const Otherwise& otherwise) {
  constexpr int kPack = 16 / sizeof(T), kMostPacks = kMostElements / kPack;
  const int packs = h / kPack;
  if (!are_aligned || h % kPack != 0 || packs > kMostPacks * kMostRowThreads) return otherwise();
  if (packs <= kMostRowThreads) return run(std::integral_constant<int, 1>{}, whole_warps(packs));
  if (packs <= 2 * kMostRowThreads)
    return run(std::integral_constant<int, 2>{}, whole_warps((packs + 1) / 2));
  if constexpr (kMostPacks >= 4) run(std::integral_constant<int, 4>{}, whole_warps((packs + 3) / 4));
}

/// Elements of a row that a thread holds in registers without spilling them; backward has three such rows and
/// sums.
inline constexpr int kForwardElements = 32, kBackwardElements = 16;

}  // namespace shardwise::kernels::cuda
