#include "tests/support/numerics.h"

#include <algorithm>
#include <cmath>

namespace shardwise::testing {

double unit_roundoff(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kDouble:
      return std::ldexp(1, -53);
    case c10::kFloat:
      return std::ldexp(1, -24);
    default:
      return std::ldexp(1, -8);  // bf16
  }
}

double product_bound(int64_t length, c10::ScalarType dtype) {
  const double accumulated = unit_roundoff(dtype == c10::kDouble ? dtype : c10::kFloat);
  return accumulated * std::sqrt(static_cast<double>(length)) + unit_roundoff(dtype);
}

namespace {

// 6 ε of docs/numerics.md §4 after `chains` times the forward's storings.
double step_bound(const model::Config& config, int64_t tokens, double chains, c10::ScalarType dtype) {
  const int64_t longest = std::max({config.hidden_size, config.intermediate_size, config.vocab_size, tokens});
  const double storings = chains * (16 * config.num_hidden_layers + 6);
  return 6 * std::sqrt(storings / 3) * product_bound(longest, dtype);
}

}  // namespace

double loss_bound(const model::Config& config, int64_t tokens, c10::ScalarType dtype) {
  return step_bound(config, tokens, /*chains=*/1, dtype);
}

double gradient_bound(const model::Config& config, int64_t tokens, c10::ScalarType dtype) {
  return step_bound(config, tokens, /*chains=*/3, dtype);
}

}  // namespace shardwise::testing
