#include "shardwise/kernels/finite.h"

#include <ATen/ops/atleast_2d.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {

using at::Tensor;

namespace {

constexpr int64_t kRun = 256;  // elements: of a known count, so that the compiler makes vectors of them

/// The place of the first number whose `exponent` bits are all set, which makes it infinite or none; `n`:
/// there is none.
template <class Bits>
int64_t first_place(const Bits* numbers, int64_t n, Bits exponent) {
  int64_t place = 0;
  for (; place + kRun <= n; place += kRun) {
    Bits most = 0;
    for (int64_t i = 0; i < kRun; ++i) most = std::max<Bits>(most, numbers[place + i] & exponent);
    if (most == exponent) break;
  }
  while (place < n && (numbers[place] & exponent) != exponent) ++place;
  return place;
}

void lower_(std::atomic<int64_t>& least, int64_t value) {
  int64_t seen = least;
  while (value < seen && !least.compare_exchange_weak(seen, value)) {
  }
}

bool is_of_rows(const Tensor& x) {
  return x.size(1) <= 1 || x.stride(1) == 1;
}

template <class Bits>
std::optional<double> first_in_rows(const Tensor& rows, Bits exponent) {
  const int64_t count = rows.size(0), width = rows.size(1);
  const auto place_in = [&](int64_t row) {
    return first_place(elements<Bits>(rows) + row * rows.stride(0), width, exponent);
  };
  std::atomic<int64_t> first = count;
  for_ranges(count, std::max<int64_t>(width, 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (place_in(row) < width) return lower_(first, row);
    }
  });
  if (first == count) return std::nullopt;
  const auto number = rows[first][place_in(first)].template item<double>();
  return std::isnan(number) ? std::numeric_limits<double>::quiet_NaN() : number;  // of either sign
}

}  // namespace

std::optional<double> first_not_finite(const Tensor& x) {
  if (at::isIntegralType(x.scalar_type(), /*includeBool=*/true)) return std::nullopt;
  const Tensor matrix = at::atleast_2d(x), rows = is_of_rows(matrix) ? matrix : matrix.t();
  TORCH_INTERNAL_ASSERT(is_of_rows(rows), "numbers that do not lie in rows");
  switch (x.scalar_type()) {
    case at::kDouble:
      return first_in_rows<int64_t>(rows, 0x7ff0000000000000);
    case at::kFloat:
      return first_in_rows<int32_t>(rows, 0x7f800000);
    case at::kBFloat16:
      return first_in_rows<int16_t>(rows, 0x7f80);
    case at::kHalf:
      return first_in_rows<int16_t>(rows, 0x7c00);
    default:
      TORCH_INTERNAL_ASSERT(false, "numbers as ", x.scalar_type());
  }
}

}  // namespace shardwise::kernels
