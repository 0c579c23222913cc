#include "shardwise/parallel/verify.h"

#include <ATen/ops/full.h>

#include <cstring>

namespace shardwise::parallel {

void verify_equal(const at::Tensor& x, const char* what, const Step& step) {
  if (step.verify == Verify::off || step.group.size() == 1) return;
  const at::Tensor local = x.detach().contiguous();
  at::Tensor expected = local.clone();
  step.group.broadcast_(expected, /*root=*/0);
  const bool differs = std::memcmp(local.const_data_ptr(), expected.const_data_ptr(), local.nbytes()) != 0;
  const at::Tensor differing = step.group.all_reduce(at::full({1}, differs ? 1 : 0, at::kLong));
  TORCH_CHECK(differing.item<int64_t>() == 0, "verify: ", what,
              " must be equal on every rank; it differs from rank 0's on ", differing.item<int64_t>(), " of ",
              step.group.size(), " ranks");
}

}  // namespace shardwise::parallel
