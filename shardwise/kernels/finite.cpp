#include "shardwise/kernels/finite.h"

#include <ATen/ops/atleast_2d.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "shardwise/kernels/device.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {

using at::Tensor;

namespace {

constexpr int64_t kRun = 256;  // elements; a constant count lets the compiler vectorize

/// Returns the index of the first value whose `exponent` bits are all set (NaN or Inf), or `n`.
template <class Bits>
int64_t first_index(const Bits* values, int64_t n, Bits exponent) {
  int64_t index = 0;
  for (; index + kRun <= n; index += kRun) {
    Bits max = 0;
    for (int64_t i = 0; i < kRun; ++i) max = std::max<Bits>(max, values[index + i] & exponent);
    if (max == exponent) break;
  }
  while (index < n && (values[index] & exponent) != exponent) ++index;
  return index;
}

void atomic_min_(std::atomic<int64_t>& min, int64_t value) {
  int64_t seen = min;
  while (value < seen && !min.compare_exchange_weak(seen, value)) {
  }
}

bool has_contiguous_rows(const Tensor& x) {
  return x.size(1) <= 1 || x.stride(1) == 1;
}

template <class Bits>
std::optional<double> first_in_rows(const Tensor& rows, Bits exponent) {
  const int64_t count = rows.size(0), width = rows.size(1);
  const auto index_in = [&](int64_t row) {
    return first_index(elements<Bits>(rows) + row * rows.stride(0), width, exponent);
  };
  std::atomic<int64_t> first = count;
  for_ranges(count, std::max<int64_t>(width, 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (index_in(row) < width) return atomic_min_(first, row);
    }
  });
  if (first == count) return std::nullopt;
  const auto value = rows[first][index_in(first)].template item<double>();
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;  // drops the sign of a NaN
}

}  // namespace

std::optional<double> first_nan_or_inf(const Tensor& x) {
  if (device_of("first_nan_or_inf", x)) return first_nan_or_inf(x.cpu());
  if (at::isIntegralType(x.scalar_type(), /*includeBool=*/true)) return std::nullopt;
  const Tensor matrix = at::atleast_2d(x), rows = has_contiguous_rows(matrix) ? matrix : matrix.t();
  TORCH_INTERNAL_ASSERT(has_contiguous_rows(rows), "first_nan_or_inf: one dim must be contiguous");
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
      TORCH_INTERNAL_ASSERT(false, "first_nan_or_inf: unsupported dtype ", x.scalar_type());
  }
}

}  // namespace shardwise::kernels
