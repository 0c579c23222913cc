#include "shardwise/kernels/head_groups.h"

#include <algorithm>

#include "shardwise/kernels/tensors.h"

namespace shardwise::kernels {

std::vector<HeadGroup> groups_of(const std::vector<int64_t>& kv_of_head) {
  std::vector<HeadGroup> groups;
  for (int64_t head = 0; head < std::ssize(kv_of_head); ++head) {
    if (groups.empty() || groups.back().kv != kv_of_head[head])
      groups.push_back({head, head, kv_of_head[head]});
    groups.back().end = head + 1;
  }
  return groups;
}

void check_heads(const char* op, const Qkv& qkv, const AttentionOptions& options) {
  const auto& [q, k, v] = qkv;
  TORCH_CHECK_VALUE(q.dim() == 4 && k.dim() == 4, op, ": q and k must be [b, heads, s, d]; got ", q.sizes(),
                    " and ", k.sizes(), " [SW0398]");
  check_tensor(op, "k", k, {q.size(0), k.size(1), k.size(2), q.size(3)}, q.scalar_type());
  check_tensor(op, "v", v, k.sizes(), q.scalar_type());
  const auto& kv_of_head = options.kv_of_head;
  const auto heads = std::ssize(kv_of_head);
  const bool fits = heads == q.size(1) && std::ranges::is_sorted(kv_of_head) &&
                    (heads == 0 || (kv_of_head.front() >= 0 && kv_of_head.back() < k.size(1)));
  TORCH_CHECK_VALUE(fits, op, ": kv_of_head must list one of ", k.size(1), " KV heads for each of ",
                    q.size(1), " query heads, ascending; got ", at::IntArrayRef(kv_of_head), " [SW0399]");
  const auto& window = options.window;
  TORCH_CHECK_VALUE(!window || (options.causal && *window > 0), op,
                    ": a window must be causal and at least 1; got ", *window, " [SW0403]");
}

}  // namespace shardwise::kernels
