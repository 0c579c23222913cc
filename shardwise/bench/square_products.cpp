#include "shardwise/bench/square_products.h"

#include <ATen/ops/empty.h>

#include "shardwise/bench/kernel_cases.h"
#include "shardwise/bench/probes.h"
#include "shardwise/bench/synchronizer.h"
#include "shardwise/kernels/product.h"

namespace shardwise::bench {
namespace {

TimedCall product_of_squares(int64_t n, at::ScalarType dtype) {
  const at::Tensor x = random_tensor({n, n}, dtype), w = random_tensor({n, n}, dtype, /*seed=*/2);
  at::Tensor y = at::empty({n, n}, x.options());
  return {std::to_string(n), [=]() mutable { kernels::product_out(y, x, w.t()); }, /*rewrite=*/{}};
}

}  // namespace

SquaresMeasured measure_squares(at::ScalarType dtype, const std::vector<int64_t>& sizes, double seconds,
                                const comm::Group& group, const OnSquareProgress& on_progress) {
  Synchronizer synchronizer = synchronizer_of(group);
  if (group.rank() == 0) synchronizer.after_repetition = on_progress;
  const ArithmeticProbe arithmetic(dtype);
  std::vector<TimedCall> calls{{"arithmetic", [&] { arithmetic.run(); }, /*rewrite=*/{}}};
  for (const int64_t n : sizes) calls.push_back(product_of_squares(n, dtype));
  const std::vector<Measured> times = measure(calls, CacheState::warm, seconds, synchronizer);
  SquaresMeasured measured{{}, times[0], arithmetic.operations(), arithmetic.name()};
  for (size_t i = 0; i < sizes.size(); ++i) measured.sizes.push_back({sizes[i], times[i + 1]});
  return measured;
}

}  // namespace shardwise::bench
