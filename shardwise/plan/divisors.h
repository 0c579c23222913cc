// The degrees that a number of ranks can be divided by.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace shardwise::plan {

/// Returns the divisors of n, ascending; with a pin only that one, or none if it does not divide n.
std::vector<int64_t> divisors(int64_t n, const std::optional<int64_t>& pin = {});

}  // namespace shardwise::plan
