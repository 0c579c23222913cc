// The CUDA kernels of QK norm, split and rotation, on the emulator, against fp64.
#include "shardwise/kernels/qk_norm_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/emulator/kernels/orders.h"
#include "tests/emulator/kernels/values.h"

namespace shardwise::kernels::cuda::qk_norm_test {
namespace {

constexpr double kEps = 1e-5;
constexpr int64_t kFirst = 3;

enum class Positions { common, of_each, padded };

struct Case {
  int64_t s;
  int b, a, k, d, half;
  int blocks = 2;
  Positions positions = Positions::common;
  bool are_by_token = false;  // the memory of q, k and v is [b, s, heads, d + gap]
  int shift = 0;              // elements by which everything is not aligned
  int gap = 0;

  int heads() const { return a + 2 * k; }
  size_t size() const { return s * b * heads() * d; }
  size_t size_of(int part_heads) const { return s * b * part_heads * (d + gap) + shift; }
  /// The first rows of the odd sequences may be padding, of which some would have negative positions.
  int64_t begin(int batch) const { return batch % 2 == 1 ? std::min<int64_t>(kFirst + 2, s) : 0; }
  int64_t position(int64_t row, int batch) const {
    if (positions == Positions::of_each) return row + 2 * batch;
    return std::max<int64_t>(0, kFirst + row - (positions == Positions::padded ? begin(batch) : 0));
  }
  int64_t most_positions() const { return kFirst + s + 2 * b; }
};

std::string text(const Case& c) {
  return std::to_string(c.s) + "x" + std::to_string(c.b) + " a" + std::to_string(c.a) + " k" +
         std::to_string(c.k) + " d" + std::to_string(c.d) + " half" + std::to_string(c.half);
}

/// Where heads are in their memory.
template <class T>
Heads<T> heads_of(T* data, int heads, const Case& c) {
  if (!c.are_by_token) return contiguous_heads(data, heads, c.s, c.d);
  const int64_t d = c.d + c.gap;
  return {data, c.s * heads * d, d, heads * d};
}

/// The inputs of both directions. Arrays have `shift` more elements at their beginning.
template <class T>
struct Inputs {
  explicit Inputs(const Case& c)
      : qkv(c.size() + c.shift, 1, 0),
        q_weight(c.d + c.shift, 2, 1),
        k_weight(c.d + c.shift, 3, 1),
        dq(c.size_of(c.a), 4, 0),
        dk(c.size_of(c.k), 5, 0),
        dv(c.size_of(c.k), 6, 0),
        cos(c.most_positions() * c.half + 1, [&](size_t i) { return std::cos(angle(i, c)); }),
        sin(c.most_positions() * c.half + 1, [&](size_t i) { return std::sin(angle(i, c)); }),
        firsts(c.b, [](size_t batch) { return 2 * static_cast<int64_t>(batch); }),
        begins(c.b, [&](size_t batch) { return c.begin(static_cast<int>(batch)); }) {}

  static float angle(size_t i, const Case& c) {
    const size_t position = i / std::max(1, c.half), pair = i % std::max(1, c.half);
    return static_cast<float>(position) / static_cast<float>(1 + pair);
  }
  HeadSplit split(const Case& c) const {
    return {c.s,
            c.b,
            c.a,
            c.k,
            c.d,
            cos.data(),
            sin.data(),
            c.half,
            kFirst,
            c.positions == Positions::of_each ? firsts.data() : nullptr,
            c.positions == Positions::padded ? begins.data() : nullptr};
  }

  Values<T> qkv, q_weight, k_weight, dq, dk, dv;
  DeviceArray<float> cos, sin;
  DeviceArray<int64_t> firsts, begins;
};

/// Calls visit(row, batch, head of q|k|v) for every head.
template <class Visit>
void for_each_head(const Case& c, const Visit& visit) {
  for (int64_t row = 0; row < c.s; ++row)
    for (int batch = 0; batch < c.b; ++batch)
      for (int head = 0; head < c.heads(); ++head) visit(row, batch, head);
}

/// A head in fp64, or the magnitudes of what is added up in its elements.
using Head = std::vector<double>;

/// Rotates by the angles of a position, forward (sign 1) or back (sign −1).
template <class T>
Head rotated_head(const Head& x, const Inputs<T>& in, int64_t position, int half, int sign) {
  Head y = x;
  for (int i = 0; i < half; ++i) {
    const double cos = in.cos.values()[position * half + i],
                 sin = sign * in.sin.values()[position * half + i];
    y[i] = x[i] * cos - x[half + i] * sin;
    y[half + i] = x[half + i] * cos + x[i] * sin;
  }
  return y;
}
/// Of the products that rotated_head adds.
Head size_of_rotated(const Head& x, int half) {
  Head y = x;
  for (double& value : y) value = std::abs(value);
  for (int i = 0; i < half; ++i) y[i] = y[half + i] = std::abs(x[i]) + std::abs(x[half + i]);
  return y;
}

double rstd_of(const Head& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return 1 / std::sqrt(squares / static_cast<double>(x.size()) + kEps);
}

template <class T>
Head head_at(const Values<T>& values, int64_t at, int d) {
  return {values.wide.begin() + at, values.wide.begin() + at + d};
}

/// Where the head of q|k|v is in q, k or v.
int64_t place(const Case& c, int64_t row, int batch, int head) {
  const int first = head < c.a ? 0 : head < c.a + c.k ? c.a : c.a + c.k, heads = head < c.a ? c.a : c.k;
  const Heads<char> at = heads_of<char>(nullptr, heads, c);
  return c.shift + batch * at.batch + (head - first) * at.head + row * at.row;
}
int64_t place_in_qkv(const Case& c, int64_t row, int batch, int head) {
  return c.shift + ((row * c.b + batch) * c.heads() + head) * c.d;
}

template <class T>
void check_forward(const Case& c, bool has_values = true) {
  const Inputs<T> in(c);
  const DeviceArray<T> q(in.dq.wide.size()), k(in.dk.wide.size()), v(in.dv.wide.size());
  qk_norm(QkNorm<T>{in.split(c), heads_of(q.data() + c.shift, c.a, c), heads_of(k.data() + c.shift, c.k, c),
                    heads_of(has_values ? v.data() + c.shift : nullptr, c.k, c), in.qkv.data() + c.shift,
                    in.q_weight.data() + c.shift, in.k_weight.data() + c.shift, static_cast<float>(kEps),
                    c.blocks},
          nullptr);
  cudaDeviceSynchronize();
  for_each_head(c, [&](int64_t row, int batch, int head) {
    const Head x = head_at(in.qkv, place_in_qkv(c, row, batch, head), c.d);
    const bool is_value = head >= c.a + c.k;
    const auto& output = is_value ? v : head < c.a ? q : k;
    const T* const y = output.data() + place(c, row, batch, head);
    for (int i = 0; i < c.d && is_value; ++i) {
      if (has_values)
        ASSERT_EQ(static_cast<float>(y[i]), x[i]) << text(c);
      else
        ASSERT_TRUE(std::isnan(static_cast<float>(y[i])));
    }
    if (is_value) return;
    Head normalized;
    for (int i = 0; i < c.d; ++i)
      normalized.push_back(x[i] * rstd_of(x) * (head < c.a ? in.q_weight : in.k_weight).wide[c.shift + i]);
    const Head expected = rotated_head(normalized, in, c.position(row, batch), c.half, 1);
    const Head size = size_of_rotated(normalized, c.half);
    for (int i = 0; i < c.d; ++i)
      ASSERT_NEAR(static_cast<float>(y[i]), expected[i],
                  roundings(c.d) * kUnit * size[i] + rounding_to<T>(expected[i]))
          << text(c) << " row " << row << " batch " << batch << " head " << head << " " << i;
  });
  for (int i = 0; i < c.shift; ++i) EXPECT_TRUE(std::isnan(static_cast<float>(q.values()[i])));
}

/// Adds a head's gradients to those of the weight, and checks its dx.
template <class T>
void check_head(const T* dx, const Head& x, const Head& dy, const Head& size, const double* weight,
                Head& grad, Head& grad_size) {
  const int d = static_cast<int>(x.size());
  const double r = rstd_of(x), error = 3 * roundings(d) * kUnit;
  double dot = 0, dot_size = 0;
  for (int i = 0; i < d; ++i) {
    dot += dy[i] * weight[i] * x[i] / d;
    dot_size += std::abs(size[i] * weight[i] * x[i]) / d;
  }
  for (int i = 0; i < d; ++i) {
    const double value = r * (dy[i] * weight[i] - x[i] * r * r * dot);
    const double magnitude = r * (std::abs(size[i] * weight[i]) + std::abs(x[i]) * r * r * dot_size);
    ASSERT_NEAR(static_cast<float>(dx[i]), value, error * magnitude + rounding_to<T>(value)) << i;
    grad[i] += dy[i] * x[i] * r;
    grad_size[i] += std::abs(size[i] * x[i] * r);
  }
}

struct WeightGrad {
  Head sum, size;
};

void check_grad(const DeviceArray<float>& grad, const WeightGrad& expected, bool is_wanted, double error) {
  for (size_t i = 0; i < expected.sum.size(); ++i)
    ASSERT_NEAR(grad.values()[i], is_wanted ? expected.sum[i] : 2, error * expected.size[i]) << i;
}

template <class T>
void check_backward(const Case& c, bool wants_q = true, bool wants_k = true) {
  const Inputs<T> in(c);
  const DeviceArray<T> d_qkv(in.qkv.wide.size());
  const auto two = [](size_t) { return 2.0f; };
  const DeviceArray<float> q_grad(c.d, two), k_grad(c.d, two), partial(size_t{2} * c.blocks * c.d);
  qk_norm_backward(
      QkNormBackward<T>{in.split(c), d_qkv.data() + c.shift, wants_q ? q_grad.data() : nullptr,
                        wants_k ? k_grad.data() : nullptr, wants_q || wants_k ? partial.data() : nullptr,
                        heads_of(in.dq.data() + c.shift, c.a, c), heads_of(in.dk.data() + c.shift, c.k, c),
                        heads_of(in.dv.data() + c.shift, c.k, c), in.qkv.data() + c.shift,
                        in.q_weight.data() + c.shift, in.k_weight.data() + c.shift, static_cast<float>(kEps),
                        c.blocks},
      nullptr);
  cudaDeviceSynchronize();
  WeightGrad of_q{Head(c.d, 2), Head(c.d, 2)}, of_k{Head(c.d, 2), Head(c.d, 2)};
  for_each_head(c, [&](int64_t row, int batch, int head) {
    SCOPED_TRACE(testing::Message() << text(c) << " row " << row << " batch " << batch << " head " << head);
    const int64_t at = place_in_qkv(c, row, batch, head);
    const bool is_query = head < c.a, is_value = head >= c.a + c.k;
    const Head dy = head_at(is_value ? in.dv : is_query ? in.dq : in.dk, place(c, row, batch, head), c.d);
    const T* const dx = d_qkv.data() + at;
    if (is_value) {
      for (int i = 0; i < c.d; ++i) ASSERT_EQ(static_cast<float>(dx[i]), dy[i]);
      return;
    }
    auto& [sum, size] = is_query ? of_q : of_k;
    check_head(dx, head_at(in.qkv, at, c.d), rotated_head(dy, in, c.position(row, batch), c.half, -1),
               size_of_rotated(dy, c.half), &(is_query ? in.q_weight : in.k_weight).wide[c.shift], sum, size);
  });
  const double error = 2 * (roundings(c.d) + static_cast<double>(c.s * c.b * c.a)) * kUnit;
  check_grad(q_grad, of_q, wants_q, error);
  check_grad(k_grad, of_k, wants_k, error);
  for (int i = 0; i < c.shift; ++i) EXPECT_TRUE(std::isnan(static_cast<float>(d_qkv.values()[i])));
}

/// Widths of whole packs and of others; all, some or no elements are rotated; at the limits of a warp.
std::vector<Case> cases() {
  if (is_sanitized())
    return {{2, 2, 3, 1, 7, 2}, {3, 2, 2, 1, 64, 32}, {5, 2, 4, 2, 80, 16, 1, Positions::padded, true}};
  return {{0, 2, 2, 1, 64, 32},
          {2, 0, 2, 1, 64, 32},
          {2, 2, 3, 1, 1, 0},
          {3, 2, 4, 2, 2, 1},
          {3, 2, 3, 1, 7, 2, 3, Positions::padded},
          {5, 3, 4, 2, 64, 32, 3, Positions::padded},
          {5, 3, 4, 2, 64, 32, 1, Positions::of_each, true},
          {2, 2, 4, 1, 65, 32},
          {3, 2, 4, 4, 80, 16, 2, Positions::of_each},
          {3, 2, 2, 1, 88, 32},  // 11 packs of bf16: the last has no second
          {3, 2, 2, 1, 96, 0},
          {7, 2, 8, 2, 128, 64, 3},
          {2, 1, 3, 1, 256, 128, 5},
          {2, 1, 2, 2, 512, 256},  // the widest of bf16
          {1, 1, 2, 1, 1000, 400}};
}

TEST(CudaQkNorm, ForwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const Case& c : cases()) {
      check_forward<float>(c);
      check_forward<__nv_bfloat16>(c);
      check_forward<__half>(c);
    }
  });
}

TEST(CudaQkNorm, BackwardMatchesFp64InEveryOrder) {
  in_every_order([] {
    for (const Case& c : cases()) {
      check_backward<float>(c);
      check_backward<__nv_bfloat16>(c);
    }
  });
}

TEST(CudaQkNorm, ValuesMayStayInQkv) {
  for (const int d : {7, 64}) check_forward<float>({2, 2, 3, 1, d, 2}, /*has_values=*/false);
}

TEST(CudaQkNorm, BackwardSumsOnlyTheGradientsThatAreWanted) {
  for (const int d : {7, 64}) {
    for (const auto& [wants_q, wants_k] : {std::pair{true, false}, {false, true}, {false, false}})
      check_backward<float>({3, 2, 3, 1, d, d / 4}, wants_q, wants_k);
  }
}

/// Heads of whole packs whose memory is not aligned to 16 bytes.
TEST(CudaQkNorm, UnalignedHeadsHaveTheSameMeaning) {
  const Case c{3, 2, 2, 1, 64, 32, 2, Positions::padded, /*are_by_token=*/false, /*shift=*/1};
  check_forward<float>(c);
  check_forward<__half>(c);
  check_backward<__nv_bfloat16>(c);
}

TEST(CudaQkNorm, HeadsApartHaveTheSameMeaning) {
  for (const int gap : {1, 8}) {
    const Case c{3, 2, 2, 1, 64, 32, 2, Positions::padded, /*are_by_token=*/true, /*shift=*/0, gap};
    check_forward<float>(c);
    check_forward<__nv_bfloat16>(c);
    check_backward<float>(c);
    check_backward<__nv_bfloat16>(c);
  }
}

}  // namespace
}  // namespace shardwise::kernels::cuda::qk_norm_test
