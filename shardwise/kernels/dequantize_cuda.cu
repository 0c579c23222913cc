#include "shardwise/kernels/dequantize_cuda.h"

#include "shardwise/kernels/pack_rows_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// Returns the value of a column of row `row`.
__device__ float value_of(const QuantizedWeight& w, int64_t row, int column) {
  const int at = w.first_value + column, per_word = 32 / w.bits;
  const uint32_t word = w.qweight[row * w.words + at / per_word];
  const int quantized = static_cast<int>(word >> at % per_word * w.bits & ((1u << w.bits) - 1));
  const int group =
      w.group_index != nullptr ? w.group_index[column] : (w.first_in_group + column) / w.group_size;
  const int zero_point = w.zero_points != nullptr ? w.zero_points[row * w.groups + group] : 1 << (w.bits - 1);
  return static_cast<float>(quantized - zero_point) * w.scales[row * w.groups + group];
}

template <class T, int N>
__global__ void __launch_bounds__(kPackThreads)
    dequantize_packs(T* out, const int64_t* ids, int64_t begin, const QuantizedWeight w, unsigned parts) {
  const auto [i, pack] = pack_place(parts);
  if (pack >= w.k / N) return;
  const int64_t row = (ids != nullptr ? ids[i] : i) - begin;
  const bool has_row = row >= 0 && row < w.n;
  Pack<T, N> values;
#pragma unroll
  for (int j = 0; j < N; ++j)
    values.at[j] = static_cast<T>(has_row ? value_of(w, row, static_cast<int>(pack * N) + j) : 0.0f);
  as_packs<N>(out + i * w.k)[pack] = values;
}

}  // namespace

template <class T>
void dequantize(const Dequantize<T>& d, cudaStream_t stream) {
  if (d.rows == 0 || d.w.k == 0) return;
  with_pack<T>(d.w.k, is_aligned(d.out), [&](auto n) {
    launch_packs(dequantize_packs<T, n>, d.rows, d.w.k / n, stream, d.out, d.ids, d.begin, d.w);
  });
}
template void dequantize(const Dequantize<float>&, cudaStream_t);
template void dequantize(const Dequantize<__nv_bfloat16>&, cudaStream_t);
template void dequantize(const Dequantize<__half>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
