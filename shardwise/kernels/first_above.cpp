#include "shardwise/kernels/first_above.h"

#include <cmath>
#include <limits>

#include "shardwise/kernels/first_above_isa.h"
#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {
namespace {

template <class A>
A rounded_down(double bound) {
  const A nearest = static_cast<A>(bound);
  return static_cast<double>(nearest) > bound ? std::nextafter(nearest, -std::numeric_limits<A>::infinity())
                                              : nearest;
}

}  // namespace

int64_t first_above(const at::Tensor& row, int64_t begin, double bound) {
  check_on_cpu("first_above", row);
  check_output("first_above", "row", row, {row.numel()}, row.scalar_type());
  int64_t found = row.numel();
  with_element_type("first_above", row, [&]<class T>(T) {
    found = first_above_loops<T>().first_above(elements<T>(row), begin, row.numel(),
                                               rounded_down<Accumulator<T>>(bound));
  });
  return found;
}

}  // namespace shardwise::kernels
