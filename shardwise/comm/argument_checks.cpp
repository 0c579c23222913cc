#include "shardwise/comm/argument_checks.h"

#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>

namespace shardwise::comm {

void check_rank(int64_t rank, int size, const char* name) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, name, ": rank must be in [0, ", size, "); got ", rank,
                    " [SW0478]");
}

void check_holds_values(const at::Tensor& x, const char* name) {
  TORCH_CHECK_VALUE(!x.is_conj() && !x.is_neg(), name,
                    ": accepts tensors whose memory holds their values; got a ",
                    x.is_conj() ? "conjugated view; call resolve_conj()" : "negated view; call resolve_neg()",
                    " first [SW0607]");
}

void check_distinct_elements(const at::Tensor& x, const char* name) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(x) != at::MemOverlap::Yes, name,
                    ": needs a tensor whose elements share no memory; got ", x.sizes(), " with strides ",
                    x.strides(), "; receive into a tensor of its own memory, such as clone()'s [SW0656]");
}

}  // namespace shardwise::comm
