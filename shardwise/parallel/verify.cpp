#include "shardwise/parallel/verify.h"

#include <ATen/ops/full.h>

#include <cstring>

namespace shardwise::parallel {

void verify_equal(const at::Tensor& x, const char* what, const Step& step) {
  if (step.verify == Verify::off || step.group.size() == 1) return;
  const at::Tensor own = x.detach().contiguous();
  at::Tensor expected = own.clone();
  step.group.broadcast_(expected, /*root=*/0);
  const bool differs = std::memcmp(own.const_data_ptr(), expected.const_data_ptr(), own.nbytes()) != 0;
  const at::Tensor differing = step.group.all_reduce(at::full({1}, differs ? 1 : 0, at::kLong));
  TORCH_CHECK(differing.item<int64_t>() == 0, "verify: ", what,
              " must be equal on every rank; it differs from rank 0's on ", differing.item<int64_t>(), " of ",
              step.group.size(), " ranks");
}

}  // namespace shardwise::parallel
