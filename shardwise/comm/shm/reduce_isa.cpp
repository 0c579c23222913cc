// Reductions over the ranks' buffers; compiled once per instruction set (cmake/room.cmake), so no library
// headers.
//
// A block of every source is folded into an accumulator that stays in the first-level cache, then rounded and
// stored to every target: each source is read once, each target written once, and targets may be sources.
#include "shardwise/comm/shm/reduce_isa.h"

namespace shardwise::comm::shm::SHARDWISE_ISA {
namespace {

constexpr int64_t kBlock = 1024;

uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

template <typename T>
struct Native {
  using Stored = T;
  using Accumulator = T;
  static T load(T x) { return x; }
  static T round(T x) { return x; }
};

struct Bf16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float load(uint16_t x) { return float_of(uint32_t(x) << 16); }
  static uint16_t round(float x) {  // to nearest even; a NaN must not be rounded into an infinity
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return uint16_t((x == x ? rounded : (bits | 0x400000)) >> 16);
  }
};

struct Fp16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float load(uint16_t x) {
    // The exponent moves by a product, which is exact and puts subnormals right; infinities and NaNs by hand.
    const uint32_t magnitude = uint32_t(x & 0x7fff) << 13, sign = uint32_t(x & 0x8000) << 16;
    const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
    return float_of((magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite) | sign);
  }
  static uint16_t round(float x) {
    const uint32_t bits = bits_of(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // Below 2^-14 half's steps are 2^-24; adding one half aligns them with float's last bit, which rounds to
    // even.
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above round to infinity
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return uint16_t(half | sign);
  }
};

struct Sum {
  template <typename T>
  static T apply(T a, T b) {
    return a + b;
  }
};

struct Max {
  template <typename T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

template <typename Format, typename Op>
void reduce(const void* const* sources, int ranks, void* const* targets, int copies, int64_t n) {
  using Stored = typename Format::Stored;
  alignas(64) typename Format::Accumulator sum[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = n - begin < kBlock ? n - begin : kBlock;
    const Stored* first = static_cast<const Stored*>(sources[0]) + begin;
    for (int64_t i = 0; i < count; ++i) sum[i] = Format::load(first[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const Stored* source = static_cast<const Stored*>(sources[rank]) + begin;
      for (int64_t i = 0; i < count; ++i) sum[i] = Op::apply(sum[i], Format::load(source[i]));
    }
    for (int copy = 0; copy < copies; ++copy) {
      Stored* target = static_cast<Stored*>(targets[copy]) + begin;
      for (int64_t i = 0; i < count; ++i) target[i] = Format::round(sum[i]);
    }
  }
}

}  // namespace

// Sums of integers wrap, hence unsigned.
const ReduceKernels reduce_kernels = {
    {reduce<Native<double>, Sum>, reduce<Native<float>, Sum>, reduce<Bf16, Sum>, reduce<Fp16, Sum>,
     reduce<Native<uint64_t>, Sum>, reduce<Native<uint32_t>, Sum>, reduce<Native<uint8_t>, Sum>},
    {reduce<Native<double>, Max>, reduce<Native<float>, Max>, reduce<Bf16, Max>, reduce<Fp16, Max>,
     reduce<Native<int64_t>, Max>, reduce<Native<int32_t>, Max>, reduce<Native<uint8_t>, Max>}};

}  // namespace shardwise::comm::shm::SHARDWISE_ISA
