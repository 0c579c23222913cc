#include "shardwise/kernels/logit_keys_cuda.h"

#include <bit>

#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// Orders finite and infinite numbers as themselves, −0 as 0, and every NaN above them.
__device__ int ordered(float x) {
  const int bits = std::bit_cast<int>(x + 0.0f);
  if (x != x) return 0x7fffffff;
  return bits ^ (bits >> 31 & 0x7fffffff);
}

template <class T, int N>
__global__ void __launch_bounds__(kPackThreads)
    logit_key_packs(int64_t* keys, const T* logits, int v, unsigned parts) {
  const auto [row, pack] = pack_place(parts);
  if (pack >= v / N) return;
  const Pack<T, N> from = as_packs<N>(logits + row * v)[pack];
  Pack<int64_t, N> to;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const auto index = static_cast<uint32_t>(pack * N + i);
    to.at[i] =
        static_cast<int64_t>(static_cast<uint64_t>(ordered(static_cast<float>(from.at[i]))) << 32 | ~index);
  }
  as_packs<N>(keys + row * v)[pack] = to;
}

}  // namespace

template <class T>
void logit_keys(const LogitKeys<T>& k, cudaStream_t stream) {
  if (k.rows == 0 || k.v == 0) return;
  with_pack<int64_t>(k.v, is_aligned(k.keys) && is_aligned(k.logits), [&](auto n) {
    launch_packs(logit_key_packs<T, n>, k.rows, k.v / n, stream, k.keys, k.logits, k.v);
  });
}
template void logit_keys(const LogitKeys<float>&, cudaStream_t);
template void logit_keys(const LogitKeys<__nv_bfloat16>&, cudaStream_t);
template void logit_keys(const LogitKeys<__half>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
