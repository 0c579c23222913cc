#include "shardwise/comm/gather_values.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace shardwise::comm::detail {

void gather_bytes(const void* own, size_t bytes, void* all, const Group& group) {
  at::Tensor row = at::empty({1, int64_t(bytes)}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), own, bytes);
  const at::Tensor rows = group.all_gather(row, base::Split::even("ranks", group.size(), group.size()));
  std::memcpy(all, rows.const_data_ptr(), rows.nbytes());
}

}  // namespace shardwise::comm::detail
