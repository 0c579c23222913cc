#include "shardwise/kernels/quantized_row_product_cuda.h"

#include "shardwise/kernels/product_team_cuda.h"

namespace shardwise::kernels::cuda {
namespace {

/// A team's outputs share the loads and conversions of x; with eight rows, more do not fit the registers.
template <int kRows>
inline constexpr int kOutputs = kRows < 8 ? 4 : 2;

/// Packs of a row that each thread has at least if its team is the block.
constexpr int kLeastPacks = 2;

/// Columns of x and w that are in registers at a time.
constexpr int kPart = 8;

/// A float of these bits plus an integer below 2²³ is 2²³ plus that integer.
constexpr unsigned kMagic = 0x4b000000u;

__device__ float with_magic(unsigned integer) {
  return std::bit_cast<float>(kMagic | integer);
}

/// Returns values − zero point of part `part` of a pack, which are exact. `base`: 2²³ + the zero point.
template <int kBits>
__device__ void unpack(float (&to)[kPart], const Pack<uint32_t, 4>& pack, int part, float base) {
  const auto byte_of = [](uint32_t bytes, int i) {
    return std::bit_cast<float>(__byte_perm(bytes, kMagic, 0x7440u | static_cast<unsigned>(i)));
  };
  if constexpr (kBits == 4) {
    const uint32_t even = pack.at[part] & 0x0f0f0f0fu, odd = pack.at[part] >> 4 & 0x0f0f0f0fu;
#pragma unroll
    for (int i = 0; i < kPart; ++i) to[i] = byte_of(i % 2 == 0 ? even : odd, i / 2) - base;
  } else {
#pragma unroll
    for (int i = 0; i < kPart; ++i) to[i] = byte_of(pack.at[2 * part + i / 4], i % 4) - base;
  }
}

template <class T>
__device__ void load_part(float (&to)[kPart], const T* from) {
  constexpr int N = 16 / sizeof(T);
#pragma unroll
  for (int i = 0; i < kPart; i += N) {
    const Pack<T, N> pack = load_pack(as_packs<N>(from + i));
#pragma unroll
    for (int j = 0; j < N; ++j) to[i + j] = static_cast<float>(pack.at[j]);
  }
}

/// What a weight's rows have for a group.
struct GroupValues {
  float scale, base;  // base: 2²³ + the zero point
};

__device__ GroupValues group_values(const QuantizedWeight& w, int output, int group, int bits) {
  const int64_t at = int64_t{output} * w.groups + group;
  const unsigned zero_point = w.zero_points != nullptr ? w.zero_points[at] : 1u << (bits - 1);
  return {w.scales[at], with_magic(zero_point)};
}

/// Sums of a thread's products. Rows of x and outputs beyond the last are the last's again, and their sums
/// are not stored.
template <class T, int kBits, int kRows>
struct TeamProduct {
  static constexpr int kValues = 128 / kBits, kTeamOutputs = kOutputs<kRows>, kSums = kTeamOutputs * kRows;
  const QuantizedWeight& weight;
  const Pack<uint32_t, 4>* packs;
  const T* x;
  int rows[kRows];  // offsets in x
  int outputs[kTeamOutputs];
  float sums[kSums] = {};

  __device__ TeamProduct(const QuantizedRowProduct<T>& p, int64_t row, int output)
      : weight(p.w), packs(as_packs<4>(p.w.qweight)), x(p.x + row * p.w.k) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      rows[r] = weight.k * (row + r < p.m ? r : static_cast<int>(p.m - row - 1));
#pragma unroll
    for (int o = 0; o < kTeamOutputs; ++o) outputs[o] = output + o < weight.n ? output + o : weight.n - 1;
  }

  /// Adds the products of kDepth packs from `pack` on.
  template <int kDepth>
  __device__ void add(int pack, int lanes) {
    Pack<uint32_t, 4> words[kDepth][kTeamOutputs];
    GroupValues values[kDepth][kTeamOutputs];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int at = pack + d * lanes;
      const int group = static_cast<int>(static_cast<unsigned>(weight.first_in_group + at * kValues) /
                                         static_cast<unsigned>(weight.group_size));
#pragma unroll
      for (int o = 0; o < kTeamOutputs; ++o) {
        words[d][o] = load_once(packs + int64_t{outputs[o]} * (weight.words / 4) + at);
        values[d][o] = group_values(weight, outputs[o], group, kBits);
      }
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) add_pack(words[d], values[d], (pack + d * lanes) * kValues);
  }

  __device__ void add_pack(const Pack<uint32_t, 4> (&words)[kTeamOutputs],
                           const GroupValues (&values)[kTeamOutputs], int column) {
    float dots[kSums] = {};
#pragma unroll
    for (int part = 0; part < kValues / kPart; ++part) {
      float of_w[kTeamOutputs][kPart];
#pragma unroll
      for (int o = 0; o < kTeamOutputs; ++o) unpack<kBits>(of_w[o], words[o], part, values[o].base);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float of_x[kPart];
        load_part(of_x, x + rows[r] + column + part * kPart);
#pragma unroll
        for (int i = 0; i < kPart; ++i)
#pragma unroll
          for (int o = 0; o < kTeamOutputs; ++o)
            dots[o * kRows + r] = fmaf(of_x[i], of_w[o][i], dots[o * kRows + r]);
      }
    }
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = fmaf(values[i / kRows].scale, dots[i], sums[i]);
  }
};

template <class T, int kBits, int kRows>
__global__ void __launch_bounds__(kTeamThreads)
    quantized_row_product_packs(const QuantizedRowProduct<T> p, int lanes) {
  using Product = TeamProduct<T, kBits, kRows>;
  multiply_in_team<Product, kRows>(p, p.w.n, p.w.k / Product::kValues, lanes);
}

__device__ int group_of(const QuantizedWeight& w, int column) {
  return w.group_index != nullptr ? w.group_index[column] : (w.first_in_group + column) / w.group_size;
}

/// Weights that packs do not fit: the same sums, with loads of one value. A team has one output.
template <class T, int kBits>
__global__ void __launch_bounds__(kTeamThreads)
    quantized_row_product_any(const QuantizedRowProduct<T> p, int lanes) {
  constexpr int kValues = 128 / kBits, kPerWord = 32 / kBits;
  const QuantizedWeight& w = p.w;
  const Team team(lanes);
  const int64_t row = int64_t{blockIdx.y} * kMostTeamRows;
  const int rows = rows_from(row, p.m);
  if (team.number >= w.n) return;
  const uint32_t* const words = w.qweight + int64_t{team.number} * w.words;
  const T* const x = p.x + row * w.k;
  float sums[kMostTeamRows] = {};
#pragma unroll 1
  for (int first = team.lane * kValues; first < w.k; first += lanes * kValues) {
    int group = group_of(w, first);
    GroupValues values = group_values(w, team.number, group, kBits);
    float dots[kMostTeamRows] = {};
    const auto add_dots = [&] {
#pragma unroll
      for (int r = 0; r < kMostTeamRows; ++r) sums[r] = fmaf(values.scale, dots[r], sums[r]);
    };
#pragma unroll 1
    for (int column = first; column < first + kValues && column < w.k; ++column) {
      if (const int next = group_of(w, column); next != group) {
        add_dots();
#pragma unroll
        for (float& dot : dots) dot = 0;
        group = next;
        values = group_values(w, team.number, group, kBits);
      }
      const int at = w.first_value + column;
      const unsigned quantized = words[at / kPerWord] >> (at % kPerWord * kBits) & ((1u << kBits) - 1);
      const float of_w = with_magic(quantized) - values.base;
      const T* of_x = x + column;
#pragma unroll
      for (int r = 0; r < kMostTeamRows; ++r, of_x += w.k)
        if (r < rows) dots[r] = fmaf(static_cast<float>(*of_x), of_w, dots[r]);
    }
    add_dots();
  }
  sum_of_team(sums, lanes, [&](int r, float sum) {
    if (r < rows) p.y[(row + r) * w.n + team.number] = static_cast<T>(sum);
  });
}

template <class T, int kBits>
void launch_bits(const QuantizedRowProduct<T>& p, cudaStream_t stream) {
  constexpr int kValues = 128 / kBits;
  const QuantizedWeight& w = p.w;
  const int lanes = team_lanes((int64_t{w.k} + kValues - 1) / kValues, kLeastPacks);
  const bool has_whole_packs =
      is_aligned(p.x) && is_aligned(w.qweight) && w.first_value == 0 && w.words % 4 == 0 &&
      w.k % kValues == 0 && w.group_index == nullptr &&
      (w.groups <= 1 || (w.group_size % kValues == 0 && w.first_in_group % kValues == 0));
  if (!has_whole_packs)
    return launch(quantized_row_product_any<T, kBits>,
                  team_blocks(w.n, p.m, lanes, /*outputs=*/1, kMostTeamRows), kTeamThreads, stream, p, lanes);
  with_team_rows(p.m, [&](auto rows) {
    launch(quantized_row_product_packs<T, kBits, rows>, team_blocks(w.n, p.m, lanes, kOutputs<rows>, rows),
           kTeamThreads, stream, p, lanes);
  });
}

}  // namespace

template <class T>
void quantized_row_product(const QuantizedRowProduct<T>& p, cudaStream_t stream) {
  if (p.m == 0 || p.w.n == 0) return;
  if (p.w.bits == 4) return launch_bits<T, 4>(p, stream);
  launch_bits<T, 8>(p, stream);
}
template void quantized_row_product(const QuantizedRowProduct<float>&, cudaStream_t);
template void quantized_row_product(const QuantizedRowProduct<__nv_bfloat16>&, cudaStream_t);

}  // namespace shardwise::kernels::cuda
