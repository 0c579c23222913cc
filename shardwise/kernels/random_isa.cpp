#include "shardwise/kernels/random_isa.h"

#include "shardwise/kernels/loops.h"
#include "shardwise/kernels/philox_lanes.h"

namespace shardwise::kernels::SHARDWISE_ISA {
namespace {

constexpr int kBlocks = kRandomChunk / 2;

// Maps 64 random bits to the midpoint of one of 2^52 equal cells of (0, 1): exact, and never 0 or 1.
inline double unit_of(uint64_t bits) {
  const uint64_t one_to_two = (bits >> 12) | 0x3ff0000000000000u;
  return __builtin_bit_cast(double, one_to_two) - (1 - 0x1p-53);
}

// Draws two numbers in (0, 1) from each block: one from its first half, one from its second.
void draw(double* __restrict first, double* __restrict second, uint64_t first_block, uint64_t key) {
  uint64_t bits[2][kBlocks];
  for (int block = 0; block < kBlocks; block += kPhiloxLanes) {
    const PhiloxBlocks blocks = philox_blocks(first_block + block, key);
    for (int half = 0; half < 2; ++half) {
      const PhiloxWords both = (blocks.word[2 * half] << 32) | (blocks.word[2 * half + 1] & 0xffffffff);
      __builtin_memcpy(bits[half] + block, &both, sizeof both);
    }
  }
  for (int i = 0; i < kBlocks; ++i) first[i] = unit_of(bits[0][i]);
  for (int i = 0; i < kBlocks; ++i) second[i] = unit_of(bits[1][i]);
}

// Computes log x for normal x > 0: x = 2^k · (1 + f), 1 + f in [1/√2, √2), by fdlibm's series in f / (2 + f).
inline double logarithm(double x) {
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e00000000u, kOne = 0x3ff0000000000000u,
                     kTwo52 = 0x4330000000000000u;
  const uint64_t bits = __builtin_bit_cast(uint64_t, x) + (kOne - kSqrtHalf);
  const double k = __builtin_bit_cast(double, (bits >> 52) | kTwo52) - (0x1p52 + 1023);
  const double f = __builtin_bit_cast(double, (bits & 0x000fffffffffffffu) + kSqrtHalf) - 1;
  const double s = f / (2 + f), z = s * s, half_square = 0.5 * f * f;
  double series = 1.479819860511658591e-01;
  series = series * z + 1.531383769920937332e-01;
  series = series * z + 1.818357216161805012e-01;
  series = series * z + 2.222219843214978396e-01;
  series = series * z + 2.857142874366239149e-01;
  series = series * z + 3.999999999940941908e-01;
  series = series * z + 6.666666666666735130e-01;
  const double tail = s * (half_square + series * z) + k * 1.90821492927058770002e-10;
  return k * 6.93147180369123816490e-01 - ((half_square - tail) - f);
}

struct Circle {
  double cos, sin;
};

// Computes cos and sin of 2π·turn, turn in (0, 1), from the nearest quarter turn, with fdlibm's polynomials.
inline Circle circle(double turn) {
  constexpr double kShift = 0x1.8p52;  // adding it rounds to an integer in the low bits
  const double shifted = 4 * turn + kShift;
  const uint64_t quarter = __builtin_bit_cast(uint64_t, shifted);
  const double x = (4 * turn - (shifted - kShift)) * 1.57079632679489661923, z = x * x;
  double c = -1.13596475577881948265e-11;
  c = c * z + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  c = c * z * z - 0.5 * z + 1;
  double s = 1.58969099521155010221e-10;
  s = s * z - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  s = s * z * x + x;
  const double cosine = quarter & 1 ? s : c, sine = quarter & 1 ? c : s;
  const uint64_t cosine_sign = ((quarter + 1) & 2) << 62, sine_sign = (quarter & 2) << 62;
  return {__builtin_bit_cast(double, __builtin_bit_cast(uint64_t, cosine) ^ cosine_sign),
          __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, sine) ^ sine_sign)};
}

// Source: Box & Muller 1958.
template <class T>
void normal(T* __restrict z, uint64_t first_block, uint64_t key) {
  double first[kBlocks], second[kBlocks];
  draw(first, second, first_block, key);
  for (int i = 0; i < kBlocks; ++i) {
    const double radius = sqrt_of(-2 * logarithm(first[i]));
    const Circle point = circle(second[i]);
    z[2 * i] = radius * point.cos;
    z[2 * i + 1] = radius * point.sin;
  }
}

template <class T>
void uniform(T* __restrict z, uint64_t first_block, uint64_t key) {
  double first[kBlocks], second[kBlocks];
  draw(first, second, first_block, key);
  for (int i = 0; i < kBlocks; ++i) {
    z[2 * i] = first[i];
    z[2 * i + 1] = second[i];
  }
}

}  // namespace

template <class T>
RandomLoops<T> random_loops() {
  return {normal<T>, uniform<T>};
}
template RandomLoops<double> random_loops<double>();

}  // namespace shardwise::kernels::SHARDWISE_ISA
