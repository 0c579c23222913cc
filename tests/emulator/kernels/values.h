// Random inputs of the kernels' tests, and the errors of their roundings.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "tests/emulator/device_array.h"

namespace shardwise::kernels::cuda {

using emulator::DeviceArray;

inline constexpr double kUnit = 0x1p-24;  // the relative error of a rounding to fp32

/// The relative error of a rounding to T.
template <class T>
inline constexpr double kUnitOf = std::is_same_v<T, float>    ? kUnit
                                  : std::is_same_v<T, __half> ? 0x1p-11
                                                              : 0x1p-8;

/// The error of a rounding to T below its normal numbers.
template <class T>
inline constexpr double kTinyOf = std::is_same_v<T, __half> ? 0x1p-25 : 0x1p-126;

/// n values of T, as T and widened.
template <class T>
struct Values {
  Values(size_t n, unsigned seed, double mean) : device(n) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(mean, 1);
    for (size_t i = 0; i < n; ++i) {
      device.data()[i] = static_cast<T>(static_cast<float>(normal(random)));
      wide.push_back(static_cast<double>(static_cast<float>(device.data()[i])));
    }
  }
  const T* data() const { return device.data(); }

  DeviceArray<T> device;
  std::vector<double> wide;
};

/// The error of a value that is rounded to T once: half's least steps are 2⁻²⁴.
template <class T>
double rounding_to(double value) {
  return kUnitOf<T> * std::abs(value) + (std::is_same_v<T, __half> ? 0x1p-25 : 0x1p-140);
}

/// The relative errors of CUDA's expf(x), __expf(x) and __fdividef, in units of kUnit, which is half a unit
/// in the last place. Source: CUDA C++ Programming Guide, mathematical functions.
inline constexpr double kExpUnits = 4, kFastDivideUnits = 4;
inline double fast_exp_units(double x) {
  return 4 + 2 * 1.173 * std::abs(x);
}

/// Returns whether two elements have equal bits: tells −0 from 0.
template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Returns how many of the elements are NaN.
template <class T>
size_t count_nan(std::span<const T> elements) {
  size_t count = 0;
  for (const T& element : elements) count += std::isnan(static_cast<float>(element)) ? 1 : 0;
  return count;
}

/// The roundings of a sum of h products by the threads of a block, one after the other, and by the warps.
inline double roundings(int h) {
  return 48 + static_cast<double>(h) / 256;
}

}  // namespace shardwise::kernels::cuda
