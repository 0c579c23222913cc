#include "shardwise/plan/divisors.h"

#include <algorithm>

namespace shardwise::plan {

std::vector<int64_t> divisors(int64_t n, const std::optional<int64_t>& pin) {
  if (pin) return n % *pin == 0 ? std::vector{*pin} : std::vector<int64_t>{};
  std::vector<int64_t> found;
  for (int64_t i = 1; i * i <= n; ++i) {
    if (n % i != 0) continue;
    found.push_back(i);
    if (i != n / i) found.push_back(n / i);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace shardwise::plan
