// Lookup in one shard of an embedding table; parallel/ reduces over the shards.
#pragma once
#include <ATen/core/Tensor.h>

namespace shardwise::kernels {

/// Computes y = table[ids − begin], zero for ids outside [begin, begin + v_local).
/// Shapes: `ids` [...] int64, `table` [v_local, h], `y` [..., h] of the table's dtype, contiguous.
void embedding_out(at::Tensor& y, const at::Tensor& ids, const at::Tensor& table, int64_t begin);

/// Adds each row of `dy` to its id's row of `table_grad_`, in the order of positions.
/// Shapes: `dy` [..., h], `table_grad_` [v_local, h] fp32 (fp64 for fp64).
void embedding_backward_(at::Tensor& table_grad_, const at::Tensor& dy, const at::Tensor& ids, int64_t begin);

}  // namespace shardwise::kernels
