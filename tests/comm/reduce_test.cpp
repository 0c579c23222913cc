// The reduction kernels of every instruction set of this machine, against scalar references.
#include "shardwise/comm/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "shardwise/base/error.h"
#include "shardwise/base/isa.h"

namespace shardwise::comm::reduce_test {
namespace {

std::vector<const ReduceKernels*> available() {
  std::vector<const ReduceKernels*> kernels = {&baseline::reduce_kernels};
  if (base::best_isa() >= base::Isa::avx2) kernels.push_back(&avx2::reduce_kernels);
  if (base::best_isa() >= base::Isa::avx512) kernels.push_back(&avx512::reduce_kernels);
  return kernels;
}

ReduceKernel kernel(const ReduceKernels& kernels, Reduce reduce, Element element) {
  return kernels.table[int(reduce)][int(element)];
}

/// A byte of a bool tensor; any nonzero byte is true.
struct Flag {
  uint8_t byte = 0;
};

template <typename T, Element kElement>
struct Typed {
  using Type = T;
  using Buffer = std::vector<T>;
  static constexpr Element element = kElement;
  static constexpr bool is_flag = std::is_same_v<T, Flag>;
  static constexpr bool is_float =
      std::is_floating_point_v<T> || kElement == Element::bf16 || kElement == Element::f16;
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

  static bool supports(Reduce reduce) {
    if (reduce == Reduce::average) return is_float;
    return !is_float || (reduce != Reduce::bit_and && reduce != Reduce::bit_or && reduce != Reduce::bit_xor);
  }
};

// Reduces in rank order and rounds once.
template <typename Wide>
Wide of_floats(Reduce reduce, const std::vector<Wide>& inputs) {
  if (reduce == Reduce::product)
    return std::accumulate(inputs.begin() + 1, inputs.end(), inputs[0], std::multiplies<>());
  if (reduce == Reduce::sum || reduce == Reduce::average) {
    const Wide sum = std::accumulate(inputs.begin() + 1, inputs.end(), inputs[0]);
    return reduce == Reduce::sum ? sum : sum / Wide(inputs.size());
  }
  for (const Wide input : inputs) {
    if (std::isnan(input)) return input;
  }
  // Among equal zeros, the last one wins, whatever the signs.
  return reduce == Reduce::min ? *std::min_element(inputs.rbegin(), inputs.rend())
                               : *std::max_element(inputs.rbegin(), inputs.rend());
}

// Reduces modulo 2^128; the conversion to T keeps the lowest bits.
template <typename T>
T of_integers(Reduce reduce, const std::vector<T>& inputs) {
  if (reduce == Reduce::min) return *std::min_element(inputs.begin(), inputs.end());
  if (reduce == Reduce::max) return *std::max_element(inputs.begin(), inputs.end());
  using Wide = unsigned __int128;
  Wide result = Wide(inputs[0]);
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    const Wide input = Wide(inputs[rank]);
    if (reduce == Reduce::sum) result += input;
    if (reduce == Reduce::product) result *= input;
    if (reduce == Reduce::bit_and) result &= input;
    if (reduce == Reduce::bit_or) result |= input;
    if (reduce == Reduce::bit_xor) result ^= input;
  }
  return T(result);
}

Flag of_flags(Reduce reduce, const std::vector<Flag>& inputs) {
  const auto trues = std::count_if(inputs.begin(), inputs.end(), [](Flag flag) { return flag.byte != 0; });
  if (reduce == Reduce::bit_xor) return {uint8_t(trues % 2)};
  const bool needs_all = reduce == Reduce::product || reduce == Reduce::min || reduce == Reduce::bit_and;
  return {uint8_t(needs_all ? trues == std::ssize(inputs) : trues > 0)};
}

template <typename Case>
typename Case::Type reference(Reduce reduce, const typename Case::Buffer& inputs) {
  if constexpr (Case::is_flag) {
    return of_flags(reduce, inputs);
  } else if constexpr (Case::is_float) {
    using Wide = typename Case::Wide;
    return typename Case::Type(of_floats(reduce, std::vector<Wide>(inputs.begin(), inputs.end())));
  } else {
    return of_integers(reduce, inputs);
  }
}

/// Draws an element: all bits of integers, four byte values of bools, floats over many binades including Inf,
/// NaN, zeros and the limits of the range.
template <typename Case>
typename Case::Type draw(std::mt19937_64& random) {
  using T = typename Case::Type;
  if constexpr (Case::is_flag) {
    return {std::array<uint8_t, 4>{0, 1, 2, 255}[random() % 4]};
  } else if constexpr (Case::is_float) {
    using Limits = std::numeric_limits<T>;
    const T ends[] = {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), T(0.f), T(-0.f),
                      Limits::max(),       Limits::lowest(),   Limits::denorm_min()};
    if (random() % 8 == 0) return ends[random() % 8];
    const int exponent = int(random() % 24) - 12;
    return T(typename Case::Wide(std::ldexp(double(int64_t(random())), exponent - 63)));
  } else {
    return T(random());
  }
}

template <typename T>
bool same(T a, T b) {
  if constexpr (std::is_same_v<T, Flag> || std::is_integral_v<T>) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
  } else {
    return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(T)) == 0;
  }
}

/// Returns the index of the first element that differs, or -1.
template <typename T>
int64_t difference(const std::vector<T>& a, const std::vector<T>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) return int64_t(i);
  }
  return -1;
}

constexpr int kGuard = 5;  // elements after each buffer that no kernel may write

/// Returns one buffer per rank and two extra buffers.
template <typename Case>
std::vector<typename Case::Buffer> buffers(int ranks, int64_t n) {
  std::mt19937_64 random(uint64_t(ranks * 10'000 + n));
  std::vector<typename Case::Buffer> buffers(size_t(ranks) + 2);
  for (auto& buffer : buffers) {
    for (int64_t i = 0; i < n + kGuard; ++i) buffer.push_back(draw<Case>(random));
  }
  return buffers;
}

template <typename Case>
typename Case::Buffer expected(Reduce reduce, const std::vector<typename Case::Buffer>& buffers, int ranks,
                               int64_t n) {
  typename Case::Buffer result, inputs(static_cast<size_t>(ranks));
  for (size_t i = 0; i < size_t(n); ++i) {
    for (size_t rank = 0; rank < inputs.size(); ++rank) inputs[rank] = buffers[rank][i];
    result.push_back(reference<Case>(reduce, inputs));
  }
  return result;
}

/// Returns the lists of target buffers: one extra, both extra, the first or last source, all sources.
std::vector<std::vector<int>> target_lists(int ranks) {
  std::vector<int> sources(static_cast<size_t>(ranks));
  std::iota(sources.begin(), sources.end(), 0);
  return {{ranks}, {ranks, ranks + 1}, {0}, {ranks - 1}, sources};
}

/// Runs `kernel` and compares all buffers with their expected contents.
template <typename Case>
void check(ReduceKernel kernel, std::vector<typename Case::Buffer> buffers,
           const typename Case::Buffer& result, int ranks, const std::vector<int>& targets) {
  auto correct = buffers;
  for (const int target : targets) std::copy(result.begin(), result.end(), correct[size_t(target)].begin());
  std::vector<const void*> from;
  std::vector<void*> to;
  for (int rank = 0; rank < ranks; ++rank) from.push_back(buffers[size_t(rank)].data());
  for (const int target : targets) to.push_back(buffers[size_t(target)].data());
  kernel(from.data(), ranks, to.data(), int(to.size()), int64_t(result.size()));
  for (size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(difference(buffers[i], correct[i]), -1)
        << "buffer " << i << " of " << ranks << " ranks, " << targets.size() << " targets from " << targets[0]
        << ", " << result.size() << " elements";
  }
}

template <typename Case>
class ReduceOf : public ::testing::Test {};

struct CaseName {
  template <typename Case>
  static std::string GetName(int) {
    constexpr const char* names[kElements] = {"f64", "f32", "bf16", "f16", "i64",
                                              "i32", "i16", "i8",   "u8",  "bool"};
    return names[int(Case::element)];
  }
};

using Cases =
    ::testing::Types<Typed<double, Element::f64>, Typed<float, Element::f32>,
                     Typed<c10::BFloat16, Element::bf16>, Typed<c10::Half, Element::f16>,
                     Typed<int64_t, Element::i64>, Typed<int32_t, Element::i32>, Typed<int16_t, Element::i16>,
                     Typed<int8_t, Element::i8>, Typed<uint8_t, Element::u8>, Typed<Flag, Element::boolean>>;
TYPED_TEST_SUITE(ReduceOf, Cases, CaseName);

TYPED_TEST(ReduceOf, EveryOperationEqualsTheScalarReference) {
  for (int i = 0; i < kReductions; ++i) {
    const Reduce reduce = Reduce(i);
    SCOPED_TRACE(name(reduce));
    for (const ReduceKernels* kernels : available()) {
      ASSERT_EQ(kernel(*kernels, reduce, TypeParam::element) != nullptr, TypeParam::supports(reduce));
    }
    if (!TypeParam::supports(reduce)) continue;
    for (const int ranks : {1, 2, 3, 5}) {
      for (const int64_t n : {0, 1, 37, 1023, 1024, 1025, 5000}) {
        const auto before = buffers<TypeParam>(ranks, n);
        const auto result = expected<TypeParam>(reduce, before, ranks, n);
        for (const auto& targets : target_lists(ranks)) {
          for (const ReduceKernels* kernels : available()) {
            const ReduceKernel reduce_kernel = kernel(*kernels, reduce, TypeParam::element);
            ASSERT_NO_FATAL_FAILURE(check<TypeParam>(reduce_kernel, before, result, ranks, targets));
          }
        }
      }
    }
  }
}

// All 16-bit patterns, alone and with zeros or random patterns. Results have the bits of c10's conversions,
// NaN included; which of two NaNs gives its sign to a sum is the processor's choice.
template <typename T>
void check_16_bit(Element element) {
  constexpr int64_t n = 1 << 16;
  std::vector<T> a(n), b(n), result(n);
  std::mt19937 random(1);
  for (int64_t i = 0; i < n; ++i) {
    a[size_t(i)] = T(uint16_t(i), T::from_bits());
    b[size_t(i)] = i % 2 ? T(uint16_t(random()), T::from_bits()) : T(0.f);
  }
  const std::vector<T> c(n, T(-0.f));
  const void* sources[] = {a.data(), b.data(), c.data()};
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    for (const int ranks : {1, 2, 3}) {
      kernel(*kernels, Reduce::sum, element)(sources, ranks, &target, 1, n);
      for (size_t i = 0; i < size_t(n); ++i) {
        const T expected = ranks == 1 ? float(a[i]) : float(a[i]) + float(b[i]);
        const bool two_nans = ranks > 1 && std::isnan(float(a[i])) && std::isnan(float(b[i]));
        const int ignored = two_nans && element == Element::f16 ? 0x8000 : 0;
        ASSERT_EQ(result[i].x | ignored, expected.x | ignored)
            << i << " " << float(a[i]) << " " << float(b[i]) << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(Reduce, Bf16RoundsToNearestEven) {
  check_16_bit<c10::BFloat16>(Element::bf16);
}

TEST(Reduce, Fp16RoundsToNearestEven) {
  check_16_bit<c10::Half>(Element::f16);
}

// Sums of three inputs that fall between two fp16 values, including subnormals.
TEST(Reduce, Fp16RoundsSumsOfManyOnce) {
  std::mt19937 random(2);
  constexpr size_t n = 100'000;
  std::vector<std::vector<c10::Half>> inputs(3, std::vector<c10::Half>(n));
  for (auto& input : inputs) {
    for (auto& x : input) x = c10::Half(uint16_t(random() & 0xbfff), c10::Half::from_bits());
  }
  const void* sources[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
  std::vector<c10::Half> result(n);
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    kernel(*kernels, Reduce::sum, Element::f16)(sources, 3, &target, 1, int64_t(n));
    for (size_t i = 0; i < n; ++i) {
      const c10::Half expected = float(inputs[0][i]) + float(inputs[1][i]) + float(inputs[2][i]);
      ASSERT_EQ(result[i].x, expected.x) << i;
    }
  }
}

TEST(Reduce, NaNPropagatesFromEveryRank) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1, 2}, b = {1, nan, 3};
  const void* sources[] = {a.data(), b.data()};
  std::vector<float> result(3);
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    kernel(*kernels, Reduce::max, Element::f32)(sources, 2, &target, 1, 3);
    EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]));
    EXPECT_EQ(result[2], 3);
    kernel(*kernels, Reduce::min, Element::f32)(sources, 2, &target, 1, 3);
    EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]));
    EXPECT_EQ(result[2], 2);
  }
}

TEST(Reduce, IntegersWrap) {
  const std::vector<uint8_t> a(40, 200), b(40, 100);
  const std::vector<int64_t> c(3, std::numeric_limits<int64_t>::max()), d(3, 1);
  std::vector<uint8_t> bytes(40);
  std::vector<int64_t> longs(3);
  for (const ReduceKernels* kernels : available()) {
    const void* small[] = {a.data(), b.data()};
    void* target = bytes.data();
    kernel(*kernels, Reduce::sum, Element::u8)(small, 2, &target, 1, 40);
    EXPECT_EQ(bytes, std::vector<uint8_t>(40, 44));
    const void* large[] = {c.data(), d.data()};
    target = longs.data();
    kernel(*kernels, Reduce::sum, Element::i64)(large, 2, &target, 1, 3);
    EXPECT_EQ(longs, std::vector<int64_t>(3, std::numeric_limits<int64_t>::min()));
  }
}

TEST(Reduce, NegativeIntegersCompareSigned) {
  const std::vector<int32_t> a = {-5, -1}, b = {-3, 4};
  const void* sources[] = {a.data(), b.data()};
  std::vector<int32_t> result(2);
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    kernel(*kernels, Reduce::max, Element::i32)(sources, 2, &target, 1, 2);
    EXPECT_EQ(result, (std::vector<int32_t>{-3, 4}));
  }
}

TEST(Reduce, WritesEveryTargetEvenWhenTheyAreTheSources) {
  std::vector<double> a(2500), b(2500), c(2500);
  for (size_t i = 0; i < a.size(); ++i) a[i] = double(i), b[i] = 10, c[i] = 0.5;
  const void* sources[] = {a.data(), b.data(), c.data()};
  void* targets[] = {a.data(), b.data(), c.data()};
  reduce_kernel(at::kDouble, Reduce::sum)(sources, 3, targets, 3, 2500);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], double(i) + 10.5);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, c);
}

// (1.25 + 2^-8 + 0) / 3 in bf16: rounding the sum first would result in 0.416015625.
TEST(Reduce, AveragesAreRoundedOnceAfterTheDivision) {
  const std::vector<c10::BFloat16> a(70, 1.25f), b(70, 0x1p-8f), c(70, 0.f);
  const void* sources[] = {a.data(), b.data(), c.data()};
  std::vector<c10::BFloat16> result(70);
  void* target = result.data();
  for (const ReduceKernels* kernels : available()) {
    kernel(*kernels, Reduce::average, Element::bf16)(sources, 3, &target, 1, 70);
    EXPECT_EQ(result, std::vector<c10::BFloat16>(70, 0.41796875f));
  }
}

std::string value_error(at::ScalarType dtype, Reduce reduce) {
  try {
    reduce_kernel(dtype, reduce);
  } catch (const c10::ValueError& error) {
    return base::without_code(base::one_line(error));
  }
  return "accepted";
}

TEST(Reduce, RejectsUnsupportedDtypes) {
  EXPECT_EQ(value_error(at::kLong, Reduce::average),
            "reduction: average accepts floating-point dtypes; got Long");
  EXPECT_EQ(value_error(at::kBool, Reduce::average),
            "reduction: average accepts floating-point dtypes; got Bool");
  EXPECT_EQ(value_error(at::kHalf, Reduce::bit_and),
            "reduction: bit_and accepts integers and bool; got Half");
  EXPECT_EQ(value_error(at::kDouble, Reduce::bit_or),
            "reduction: bit_or accepts integers and bool; got Double");
  EXPECT_EQ(value_error(at::kFloat, Reduce::bit_xor),
            "reduction: bit_xor accepts integers and bool; got Float");
  EXPECT_EQ(
      value_error(at::kComplexFloat, Reduce::sum),
      "reduction: dtype must be float64, float32, bfloat16, float16, int64, int32, int16, int8, uint8 or "
      "bool; got ComplexFloat");
  EXPECT_EQ(value_error(at::kBool, Reduce::sum), "accepted");
  EXPECT_EQ(value_error(at::kShort, Reduce::bit_xor), "accepted");
  EXPECT_EQ(value_error(at::kChar, Reduce::product), "accepted");
}

}  // namespace
}  // namespace shardwise::comm::reduce_test
