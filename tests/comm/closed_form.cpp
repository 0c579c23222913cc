#include "tests/comm/closed_form.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <functional>

namespace shardwise::testing {
namespace {

using base::Range;
using comm::Reduce;

constexpr int64_t kPeriod = 251;  // of all messages; prime, so that no memory block is a multiple of it

int64_t digit(int number, int64_t i) {
  return (7 * i + 31 * number + 1) % kPeriod % 11;
}

/// Returns true with probability 1/11 if one true decides the result, 10/11 if all must be true, and 5/11 if
/// the parity decides.
bool flag(Reduce reduce, int64_t digit) {
  switch (reduce) {
    case Reduce::sum:
    case Reduce::max:
    case Reduce::bit_or:
      return digit == 0;
    case Reduce::bit_xor:
      return digit < 5;
    default:
      return digit != 0;
  }
}

/// Returns an element of either sign. Over eight ranks, sums stay within 40 and products within 256; averages
/// are integers; bit patterns have seven bits.
int64_t element(const Content& content, int number, int64_t i) {
  const int64_t d = digit(number, i);
  if (content.dtype == at::kBool) return flag(content.reduce, d);
  switch (content.reduce) {
    case Reduce::product:
      return std::array<int64_t, 3>{1, 2, -1}[size_t(d % 3)];
    case Reduce::average:
      return content.ranks * (d - 5);
    case Reduce::bit_and:
    case Reduce::bit_or:
    case Reduce::bit_xor:
      return 11 * d;
    default:
      return d - 5;
  }
}

int64_t reduce_pair(Reduce reduce, int64_t a, int64_t b) {
  switch (reduce) {
    case Reduce::sum:
    case Reduce::average:
      return a + b;
    case Reduce::product:
      return a * b;
    case Reduce::min:
      return std::min(a, b);
    case Reduce::max:
      return std::max(a, b);
    case Reduce::bit_and:
      return a & b;
    case Reduce::bit_or:
      return a | b;
    case Reduce::bit_xor:
      return a ^ b;
  }
  return -1;
}

int64_t reduced_element(const Content& content, int64_t i) {
  int64_t result = element(content, 0, i);
  for (int rank = 1; rank < content.ranks; ++rank) {
    const int64_t next = element(content, rank, i);
    // Negative elements wrap in unsigned bytes, so −1 compares as 255.
    const bool is_byte = content.dtype == at::kByte;
    result = reduce_pair(content.reduce, is_byte ? result & 255 : result, is_byte ? next & 255 : next);
  }
  return content.reduce == Reduce::average ? result / content.ranks : result;
}

/// Returns `at(i)` for every i of the range, cast to `dtype`: integers wrap, bool is "not zero".
at::Tensor repeated(at::ScalarType dtype, Range range, const std::function<int64_t(int64_t)>& at) {
  std::vector<int64_t> period;
  for (int64_t i = 0; i < kPeriod; ++i) period.push_back(at(range.begin + i));
  return at::tensor(period, at::kLong)
      .to(dtype)
      .repeat(range.size() / kPeriod + 1)
      .narrow(0, 0, range.size())
      .clone();
}

}  // namespace

at::Tensor message(const Content& content, int number, Range range) {
  return repeated(content.dtype, range, [&](int64_t i) { return element(content, number, i); });
}

at::Tensor reduced_message(const Content& content, Range range) {
  return repeated(content.dtype, range, [&](int64_t i) { return reduced_element(content, i); });
}

}  // namespace shardwise::testing
