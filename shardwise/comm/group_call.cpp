#include "shardwise/comm/group_call.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "shardwise/comm/argument_checks.h"

namespace shardwise::comm {
namespace {

int64_t check_dim(const char* op, const at::Tensor& x, int64_t dim) {
  TORCH_CHECK_VALUE(dim >= -x.dim() && dim < x.dim(), op, ": dim must be in [", -x.dim(), ", ", x.dim(),
                    "); got ", dim, " [SW0491]");
  return dim < 0 ? dim + x.dim() : dim;
}

void check_split(const char* op, const base::Split& split, int size) {
  TORCH_CHECK_VALUE(split.ranks() == size && split.is_partition(), op, ": split ", split.name(),
                    " must assign each index to one of ", size, " ranks; got a split over ", split.ranks(),
                    split.is_partition() ? "" : ", which assigns some to several", " [SW0492]");
}

}  // namespace

void check_root(const char* op, int root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, op, ": root must be in [0, ", size, "); got ", root,
                    " [SW0493]");
}

void check_peer(const char* op, int peer, int rank, int size) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size && peer != rank, op, ": peer must be another rank in [0, ", size,
                    "); got ", peer, " on rank ", rank, " [SW0494]");
}

int64_t check_shard(const char* op, const at::Tensor& shard, const base::Split& split, int64_t dim, int rank,
                    int size) {
  check_split(op, split, size);
  dim = check_dim(op, shard, dim);
  TORCH_CHECK_VALUE(shard.size(dim) == split.range(rank).size(), op, ": dim ", dim,
                    " of a shard must be rank ", rank, "'s range of split ", split.name(), ", ",
                    split.range(rank).size(), "; got ", shard.sizes(), " [SW0495]");
  return dim;
}

int64_t check_full(const char* op, const at::Tensor& x, const base::Split& split, int64_t dim, int size) {
  check_split(op, split, size);
  dim = check_dim(op, x, dim);
  TORCH_CHECK_VALUE(x.size(dim) == split.size(), op, ": dim ", dim, " must be the size of split ",
                    split.name(), ", ", split.size(), "; got ", x.sizes(), " [SW0496]");
  return dim;
}

void check_output(const char* op, const at::Tensor& out, const at::Tensor& x) {
  TORCH_CHECK_VALUE(out.scalar_type() == x.scalar_type() && out.sizes().slice(1) == x.sizes().slice(1), op,
                    ": output and input must have the same dtype and the same sizes except dim 0; got ",
                    out.sizes(), " ", out.scalar_type(), " for ", x.sizes(), " ", x.scalar_type(),
                    " [SW0497]");
}

void check_dense_on(const char* op, const at::Tensor& x, at::Device device) {
  TORCH_CHECK_VALUE(x.layout() == at::kStrided && x.device().type() == device.type(), op,
                    ": accepts dense tensors on ", device.type(), "; got a ", x.layout(), " tensor on ",
                    x.device(), " [SW0498]");
  check_holds_values(x, op);
}

void check_async_input(const char* op, const at::Tensor& x, at::Device device,
                       const SymmetricHeap* symmetric) {
  check_dense_on(op, x, device);
  const bool is_reachable = symmetric == nullptr || symmetric->contains(x);
  TORCH_CHECK_VALUE(is_reachable && x.is_contiguous(), op,
                    ": the input must be contiguous and allocated by Group::empty; got ", x.sizes(),
                    " with strides ", x.strides(), is_reachable ? "" : " outside the symmetric heap",
                    " [SW0499]");
}

void check_divisible(const char* op, const at::Tensor& x, int size) {
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(0) % size == 0, op, ": dim 0 must be a multiple of the ", size,
                    " ranks; got ", x.sizes(), " [SW0500]");
}

at::Tensor empty_with_size(const at::Tensor& x, int64_t dim, int64_t size) {
  at::DimVector sizes(x.sizes());
  sizes[size_t(dim)] = size;
  return at::empty(sizes, x.options());
}

int64_t all_reduce_bytes(const at::Tensor& x, int rank, int size) {
  const int64_t slice = x.numel() / size + (rank < x.numel() % size);
  return (slice * (size - 1) + x.numel() - slice) * x.element_size();
}

int64_t reduce_scatter_bytes(const at::Tensor& x, const base::Split& split, int64_t dim, int rank) {
  const int64_t bytes = int64_t(x.nbytes());
  return bytes - (bytes == 0 ? 0 : bytes / x.size(dim) * split.range(rank).size());
}

}  // namespace shardwise::comm
