#include "shardwise/kernels/block_sums.h"

#include <ATen/ops/zeros.h>

#include "shardwise/kernels/column_sum_isa.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {

BlockSums::BlockSums(at::Tensor sum, int64_t blocks) : sum_(std::move(sum)) {
  if (sum_.defined()) blocks_ = at::zeros({blocks, sum_.size(0)}, sum_.options());
}

void BlockSums::accumulate_() const {
  if (!sum_.defined()) return;
  const int64_t count = blocks_.size(0), width = blocks_.size(1);
  with_element_type("block_sums", sum_, [&]<class A>(A) {
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      for_ranges(width, count, [&](int64_t begin, int64_t end) {
        column_sum_loops<A>().add_rows(elements_<A>(sum_) + begin, elements<A>(blocks_) + begin, count,
                                       end - begin, width);
      });
    }
  });
}

}  // namespace shardwise::kernels
