#include "shardwise/kernels/embedding.h"

#include <cstring>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/column_sum_isa.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

void check_table(const char* op, const at::Tensor& table, const at::Tensor& ids) {
  TORCH_CHECK_VALUE(table.dim() == 2, op, ": the table must be [v_local, h]; got ", table.sizes(),
                    " [SW0407]");
  TORCH_CHECK_VALUE(ids.scalar_type() == at::kLong, op, ": ids must be int64; got ", ids.scalar_type(),
                    " [SW0408]");
}

std::vector<int64_t> shape_of_rows(const at::Tensor& ids, int64_t h) {
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(h);
  return shape;
}

}  // namespace

void embedding_out(at::Tensor& y, const at::Tensor& ids_any, const at::Tensor& table_any, int64_t begin_id) {
  const base::ProfiledOp profiled("embedding");
  const at::Tensor ids = ids_any.contiguous(), table = table_any.contiguous();
  check_table("embedding", table, ids);
  const int64_t h = table.size(1);
  check_output("embedding", "y", y, shape_of_rows(ids, h), table.scalar_type());
  if (const auto* device = device_of("embedding", ids, table, y))
    return device->embedding(y, ids, table, begin_id);
  const size_t row_bytes = h * table.element_size();
  for_ranges(ids.numel(), h, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t id = elements<int64_t>(ids)[row] - begin_id;
      char* to = elements_<char>(y) + row * row_bytes;
      if (id >= 0 && id < table.size(0)) {
        std::memcpy(to, elements<char>(table) + id * row_bytes, row_bytes);
      } else {
        std::memset(to, 0, row_bytes);
      }
    }
  });
}

// Threads are assigned columns, so that each adds all positions in order.
void embedding_backward_(at::Tensor& table_grad_, const at::Tensor& dy_any, const at::Tensor& ids_any,
                         int64_t begin_id) {
  const base::ProfiledOp profiled("embedding_backward");
  const at::Tensor dy = dy_any.contiguous(), ids = ids_any.contiguous();
  check_table("embedding_backward", table_grad_, ids);
  const int64_t v = table_grad_.size(0), h = table_grad_.size(1), count = ids.numel();
  check_tensor("embedding_backward", "dy", dy, shape_of_rows(ids, h), dy.scalar_type());
  check_output("embedding_backward", "table_grad", table_grad_, {v, h}, accumulator_type(dy.scalar_type()));
  if (const auto* device = device_of("embedding_backward", dy, ids, table_grad_))
    return device->embedding_backward(table_grad_, dy, ids, begin_id);
  with_element_type("embedding_backward", dy, [&]<class T>(T) {
    const auto loops = column_sum_loops<T>();
    for_ranges(h, count, [&](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < count; ++row) {
        const int64_t id = elements<int64_t>(ids)[row] - begin_id;
        if (id < 0 || id >= v) continue;
        loops.add_rows(elements_<Accumulator<T>>(table_grad_) + id * h + begin,
                       elements<T>(dy) + row * h + begin,
                       /*rows=*/1, end - begin, h);
      }
    });
  });
}

}  // namespace shardwise::kernels
