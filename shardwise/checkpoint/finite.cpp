#include "shardwise/checkpoint/finite.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>

#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::checkpoint {

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

template <class Bits>
std::optional<double> first_not_finite(const Tensor& rows, Bits exponent) {
  const int64_t count = rows.size(0), width = rows.size(1);
  TORCH_INTERNAL_ASSERT(width <= 1 || rows.stride(1) == 1, "rows that do not lie in one piece");
  const auto place_in = [&](int64_t row) {
    return first_place(kernels::elements<Bits>(rows) + row * rows.stride(0), width, exponent);
  };
  std::atomic<int64_t> first = count;
  kernels::for_ranges(count, std::max<int64_t>(width, 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (place_in(row) < width) return lower_(first, row);
    }
  });
  if (first == count) return std::nullopt;
  const auto number = rows[first][place_in(first)].template item<double>();
  return std::isnan(number) ? std::numeric_limits<double>::quiet_NaN() : number;  // of either sign
}

std::optional<double> first_not_finite(const Tensor& rows) {
  switch (rows.scalar_type()) {
    case at::kDouble:
      return first_not_finite<int64_t>(rows, 0x7ff0000000000000);
    case at::kFloat:
      return first_not_finite<int32_t>(rows, 0x7f800000);
    case at::kBFloat16:
      return first_not_finite<int16_t>(rows, 0x7f80);
    case at::kHalf:
      return first_not_finite<int16_t>(rows, 0x7c00);
    default:
      TORCH_INTERNAL_ASSERT(false, "numbers as ", rows.scalar_type());
  }
}

}  // namespace

void check_finite(const Entry& entry, const std::vector<Source>& parts, int rank) {
  const auto& [name, stored, local] = entry;
  const int64_t dim = stored.is_transposed ? 1 - stored.dim : stored.dim;
  for (const Source& source : sources_of(parts, stored.held(rank))) {
    const Tensor part = local.narrow(dim, source.begin, source.size);
    const auto found = first_not_finite(part.dim() > 1 ? part : part.unsqueeze(0));
    TORCH_CHECK_VALUE(!found, source.file->path(), ": ", name, " must hold finite numbers; got ",
                      found.value_or(0));
  }
}

}  // namespace shardwise::checkpoint
