#include "shardwise/kernels/square_sum.h"

#include <algorithm>
#include <vector>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/square_sum_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {

double square_sum(const at::Tensor& x) {
  const base::ProfiledOp profiled("square_sum");
  constexpr int64_t kBlock = 4096;  // elements
  check_on_cpu("square_sum", x);
  check_output("square_sum", "x", x, x.sizes(), x.scalar_type());
  const int64_t n = x.numel();
  std::vector<double> sums(static_cast<size_t>((n + kBlock - 1) / kBlock));
  with_element_type("square_sum", x, [&]<class T>(T) {
    for_ranges(std::ssize(sums), kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block)
        sums[size_t(block)] =
            square_sum_loops<T>().sum(elements<T>(x) + block * kBlock, std::min(kBlock, n - block * kBlock));
    });
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace shardwise::kernels
