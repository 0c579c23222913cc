// The inner loops on every instruction set that this processor supports, and its detection.
#include "shardwise/kernels/isa.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <numbers>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "shardwise/base/philox.h"
#include "shardwise/kernels/attention_isa.h"
#include "shardwise/kernels/column_sum_isa.h"
#include "shardwise/kernels/cross_entropy_isa.h"
#include "shardwise/kernels/dropout_isa.h"
#include "shardwise/kernels/gelu_isa.h"
#include "shardwise/kernels/random_isa.h"
#include "shardwise/kernels/rms_norm_isa.h"
#include "shardwise/kernels/swiglu_isa.h"
#include "tests/support/instruction_set.h"

namespace shardwise::kernels::isa_test {
namespace {

class Loops : public testing::EveryIsa {};
SHARDWISE_EVERY_ISA(Loops);

// Compared with the baseline's results.
class WideLoops : public testing::EveryIsa {};
SHARDWISE_WIDE_ISAS(WideLoops);

std::set<std::string> features_of_linux() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("flags")) {
  }
  std::istringstream words(line);
  return {std::istream_iterator<std::string>(words), {}};
}

/// Returns whether Linux permits this process AMX's tiles, which it refuses if signals are handled on stacks
/// too small for them, as by some sanitizers.
bool may_use_tiles() {
  constexpr long kGetPermissions = 0x1022;  // ARCH_GET_XCOMP_PERM
  uint64_t permissions = 0;
  return ::syscall(SYS_arch_prctl, kGetPermissions, &permissions) == 0 && (permissions >> 18 & 1) != 0;
}

TEST(InstructionSets, AreThoseThatLinuxNames) {
  const Isa isa = base::processor_isa();
  const std::set<std::string> features = features_of_linux();
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::ranges::all_of(names, [&](const char* name) { return features.contains(name); });
  };
  const bool has_avx2 = has({"avx2", "fma", "f16c"});
  const bool has_avx512 = has_avx2 && has({"avx512f", "avx512bw", "avx512vl", "avx512dq"});
  const bool has_vnni = has_avx512 && has({"avx512_vnni"}), has_bf16 = has_vnni && has({"avx512_bf16"});
  const bool has_amx = has_bf16 && has({"amx_tile", "amx_bf16", "amx_int8"}) && may_use_tiles();
  EXPECT_EQ(isa, has_amx      ? Isa::amx
                 : has_bf16   ? Isa::avx512_bf16
                 : has_vnni   ? Isa::avx512_vnni
                 : has_avx512 ? Isa::avx512
                 : has_avx2   ? Isa::avx2
                              : Isa::baseline);
  std::printf("covered: inner loops for the baseline, AVX2%s, AVX-512%s, VNNI%s, AVX512-BF16%s and AMX%s\n",
              has_avx2 ? "" : " (not run)", has_avx512 ? "" : " (not run)", has_vnni ? "" : " (not run)",
              has_bf16 ? "" : " (not run)", has_amx ? "" : " (not run)");
}

// Dropout that keeps every element converts to fp32, multiplies and converts back.
template <class T>
std::vector<T> scaled(const std::vector<T>& x, float scale, Isa isa) {
  std::vector<T> y(x.size());
  dropout_loops<T>(isa).apply(y.data(), x.data(), static_cast<int64_t>(x.size()), 0, {0, 0}, scale);
  return y;
}

template <class T, class Library>
void check_conversions(Isa isa) {
  std::vector<T> all;
  for (uint32_t bits = 0; bits < 65536; ++bits) all.push_back({static_cast<uint16_t>(bits)});
  for (const float scale : {1.0f, 1.2345678f, 1.5f, 0.37e-4f, 3e-6f, 7e4f, 1e-30f}) {
    const std::vector<T> got = scaled(all, scale, isa);
    int wrong = 0;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const Library input(static_cast<uint16_t>(bits), Library::from_bits());
      const Library expected(static_cast<float>(input) * scale);
      wrong += got[bits].bits != expected.x;
    }
    EXPECT_EQ(wrong, 0) << scale;
  }
}

// NaN included, whose bits are c10's too.
TEST(LoweredIsa, IsUsed) {
  if (testing::lacks_limit()) GTEST_SKIP() << "the processor lacks SHARDWISE_MAX_ISA";
}

TEST_P(Loops, ConversionsRoundToNearestEven) {
  check_conversions<Bf16, c10::BFloat16>(GetParam());
  check_conversions<Fp16, c10::Half>(GetParam());
}

// A gradient row with lse 0 and scale 1 is e^x.
TEST_P(Loops, ExpIsWithinTwoUlp) {
  std::vector<float> x;
  for (float value = -87.33f; value < 88.37f; value += 1e-3f) x.push_back(value);
  const Isa isa = GetParam();
  std::vector<float> y = x;
  cross_entropy_loops<float>(isa).backward_row(y.data(), 0, {.scale = 1}, -1, static_cast<int64_t>(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(static_cast<double>(x[i]));
    const float nearest = static_cast<float>(exact);
    const double ulp = std::nextafter(nearest, INFINITY) - static_cast<double>(nearest);
    worst = std::max(worst, std::abs(y[i] - exact) / ulp);
  }
  EXPECT_LE(worst, 2);
}

// gelu(z)/z is the normal distribution function. Its tail is e^(−z²/2), whose argument is rounded once, times
// a fitted polynomial with an error of 2·10⁻⁸ and a dozen roundings.
TEST_P(Loops, NormalDistributionIsAccurateInTheTail) {
  std::vector<float> z;
  for (float value = -12; value < 12; value += 1e-3f) z.push_back(value);
  const std::vector<float> zeros(z.size());
  const Isa isa = GetParam();
  std::vector<float> y(z.size());
  gelu_loops<float>(isa).erf.forward(y.data(), z.data(), zeros.data(), 1, static_cast<int64_t>(z.size()),
                                     static_cast<int64_t>(z.size()));
  for (size_t i = 0; i < z.size(); ++i) {
    const double exact = z[i] * 0.5 * std::erfc(-static_cast<double>(z[i]) / std::numbers::sqrt2);
    const double places = 16 + std::max(0.0, -1.0 * z[i]) * std::abs(z[i]) / 2;
    ASSERT_LE(std::abs(y[i] - exact), places * 0x1p-24 * std::abs(exact)) << z[i];
  }
}

TEST_P(Loops, ExpHandlesExtremeInputs) {
  const std::vector<float> x = {-INFINITY, -87.5f, INFINITY, 88.8f, 0.0f, NAN};
  const Isa isa = GetParam();
  std::vector<float> y = x;
  cross_entropy_loops<float>(isa).backward_row(y.data(), 0, {.scale = 1}, -1, static_cast<int64_t>(x.size()));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], INFINITY);
  EXPECT_EQ(y[3], INFINITY);
  EXPECT_EQ(y[4], 1);
  EXPECT_TRUE(std::isnan(y[5]));
}

// A single running fp32 sum would have an error of a percent.
TEST_P(Loops, LongSumsAreAccurate) {
  const int64_t rows = 1 << 17;
  const std::vector<float> column(rows, 0.1f);
  const Isa isa = GetParam();
  float sum = 0;
  column_sum_loops<float>(isa).add_rows(&sum, column.data(), rows, /*width=*/1, /*stride=*/1);
  EXPECT_NEAR(sum / rows, 0.1, 0.1 * 1e-4);
}

// The reference uses the scalar block function and the standard library's log, cos and sin.
TEST_P(Loops, RandomChunksMatchTheReference) {
  const auto unit = [](uint32_t high, uint32_t low) {
    return (static_cast<double>((uint64_t{high} << 20) | (low >> 12)) + 0.5) * 0x1p-52;
  };
  const uint64_t key = 0x123456789abcdef0,
                 first = (uint64_t{1} << 32) - 7;  // crosses the counter's lower half
  const Isa isa = GetParam();
  double normal[kRandomChunk], uniform[kRandomChunk];
  random_loops<double>(isa).normal(normal, first, key);
  random_loops<double>(isa).uniform(uniform, first, key);
  for (int64_t i = 0; i < kRandomChunk / 2; ++i) {
    const auto [word] = base::philox(first + i, base::PhiloxUse::elements, key);
    const double u = unit(word[0], word[1]), turn = unit(word[2], word[3]);
    const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * turn;
    EXPECT_EQ(uniform[2 * i], u);
    EXPECT_EQ(uniform[2 * i + 1], turn);
    EXPECT_NEAR(normal[2 * i], radius * std::cos(angle), 8 * 0x1p-52 * (1 + radius));
    EXPECT_NEAR(normal[2 * i + 1], radius * std::sin(angle), 8 * 0x1p-52 * (1 + radius));
  }
}

std::vector<float> numbers(int64_t count, uint64_t key) {
  std::vector<double> drawn((count + kRandomChunk - 1) / kRandomChunk * kRandomChunk);
  for (int64_t i = 0; i < count; i += kRandomChunk)
    random_loops<double>(Isa::baseline).normal(&drawn[i], i / 2, key);
  return {drawn.begin(), drawn.begin() + count};
}

// The results of an instruction set for equal inputs, compared with the baseline's.
void expect_equal_to_baseline(Isa isa, const std::function<std::vector<float>(Isa)>& compute) {
  const std::vector<float> expected = compute(Isa::baseline), got = compute(isa);
  double difference = 0, scale = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(got[i] - double{expected[i]}, 2);
    scale += std::pow(double{expected[i]}, 2);
  }
  EXPECT_LE(std::sqrt(difference / scale), 64 * 0x1p-24);
}

TEST_P(WideLoops, NormsAgree) {
  const int64_t rows = 5, h = 101;
  const auto x = numbers(rows * h, 1), weight = numbers(h, 2), dy = numbers(rows * h, 3);
  expect_equal_to_baseline(GetParam(), [&](Isa isa) {
    std::vector<float> y(rows * h), rstd(rows);
    rms_norm_loops<float>(isa).forward(y.data(), rstd.data(), x.data(), weight.data(), 1e-5, rows, h);
    return y;
  });
  const std::vector<float> rstd(rows, 1.1f);
  expect_equal_to_baseline(GetParam(), [&](Isa isa) {
    std::vector<float> both(rows * h + h);
    rms_norm_loops<float>(isa).backward(both.data(), both.data() + rows * h, dy.data(), x.data(),
                                        weight.data(), rstd.data(), rows, h);
    return both;
  });
}

TEST_P(WideLoops, SwigluAgrees) {
  const int64_t rows = 3, f = 33;
  const auto gate_up = numbers(rows * 2 * f, 1), dy = numbers(rows * f, 2);
  expect_equal_to_baseline(GetParam(), [&](Isa isa) {
    std::vector<float> y(rows * 3 * f);
    swiglu_loops<float>(isa).forward(y.data(), gate_up.data(), rows, f);
    swiglu_loops<float>(isa).backward(y.data() + rows * f, dy.data(), gate_up.data(), rows, f);
    return y;
  });
}

std::vector<float> attention_gradients(const AttentionExtent& extent, Isa isa) {
  const auto forward = attention_forward_loops<float>(isa);
  const auto backward = attention_backward_loops<float>(isa);
  const int64_t s = extent.s, d = extent.d, head = s * d;
  const auto q = numbers(2 * head, 1), k = numbers(head, 2), v = numbers(head, 3),
             d_out = numbers(2 * head, 4);
  const auto heads = [&](const float* data) { return HeadRows<const float>{data, head, d}; };
  std::vector<float> out(2 * head), lse(2 * s), gradients(4 * head);
  std::vector<float> scratch(std::max(forward.scratch(extent), backward.scratch(extent)));
  forward.forward({out.data(), head, d}, lse.data(), heads(q.data()), heads(k.data()), heads(v.data()),
                  scratch.data(), extent);
  float *dq = gradients.data(), *dk = dq + 2 * head, *dv = dk + head;
  backward.backward({{dq, head, d}, {dk, head, d}, {dv, head, d}}, heads(d_out.data()),
                    {heads(q.data()), heads(k.data()), heads(v.data()), heads(out.data()), lse.data()},
                    scratch.data(), extent);
  return gradients;
}

TEST_P(WideLoops, AttentionAgrees) {
  AttentionExtent extent = {.heads = 2,
                            .s = 177,
                            .d = 18,
                            .past = 0,
                            .head_rows = 177,
                            .scale = 0.25,
                            .causal = true,
                            .window = 177,
                            .mask = {}};
  const auto agree = [&] {
    expect_equal_to_baseline(GetParam(), [&](Isa isa) { return attention_gradients(extent, isa); });
  };
  agree();
  extent.window = 50;
  agree();
  extent.mask = {{.key = 5, .threshold = 1u << 30}, /*scale=*/4.0 / 3, /*first_row=*/3, /*row_groups=*/6};
  agree();
}

}  // namespace
}  // namespace shardwise::kernels::isa_test
