#include "shardwise/comm/group_calls.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "shardwise/comm/c10d_backend.h"

namespace shardwise::comm {
namespace {

std::vector<at::Tensor> pieces_of(const at::Tensor& x, const base::Split& split, int64_t dim) {
  std::vector<at::Tensor> pieces;
  for (int rank = 0; rank < split.ranks(); ++rank) {
    pieces.push_back(x.narrow(dim, split.range(rank).begin, split.range(rank).size()));
  }
  return pieces;
}

}  // namespace

at::Tensor empty_with_size(const at::Tensor& x, int64_t dim, int64_t size) {
  at::DimVector sizes(x.sizes());
  sizes[size_t(dim)] = size;
  return at::empty(sizes, x.options());
}

bool is_synchronous(c10d::Backend& backend) {
  const auto* const ours = dynamic_cast<C10dBackend*>(&backend);
  return ours != nullptr && ours->is_synchronous();
}

int64_t all_reduce_bytes(const at::Tensor& x, int rank, int size) {
  const int64_t slice = x.numel() / size + (rank < x.numel() % size);
  return (slice * (size - 1) + x.numel() - slice) * x.element_size();
}

int64_t reduce_scatter_bytes(const at::Tensor& x, const base::Split& split, int rank) {
  const int64_t bytes = int64_t(x.nbytes());
  return bytes - (bytes == 0 ? 0 : bytes / x.size(0) * split.range(rank).size());
}

void c10d_all_gather(c10d::Backend& backend, at::Tensor& full, const at::Tensor& shard,
                     const base::Split& split, int64_t dim) {
  std::vector<at::Tensor> inputs = {shard.contiguous()};
  if (dim == 0 && split.is_uniform()) {
    backend._allgather_base(full, inputs[0])->wait();
    return;
  }
  // Backends write contiguous pieces only; pieces along another dim are concatenated afterward.
  std::vector<std::vector<at::Tensor>> pieces(1);
  for (int peer = 0; peer < split.ranks(); ++peer) {
    pieces[0].push_back(dim == 0 ? full.narrow(0, split.range(peer).begin, split.range(peer).size())
                                 : empty_with_size(shard, dim, split.range(peer).size()));
  }
  backend.allgather(pieces, inputs)->wait();
  if (dim != 0) at::cat_out(full, pieces[0], dim);
}

void c10d_reduce_scatter(c10d::Backend& backend, at::Tensor& out, const at::Tensor& x,
                         const base::Split& split, int64_t dim) {
  std::vector<at::Tensor> outputs = {out.is_contiguous() ? out : at::empty(out.sizes(), out.options())};
  if (dim == 0 && split.is_uniform()) {
    at::Tensor input = x.contiguous();
    backend._reduce_scatter_base(outputs[0], input)->wait();
  } else {
    std::vector<std::vector<at::Tensor>> inputs = {pieces_of(x, split, dim)};
    for (at::Tensor& piece : inputs[0]) piece = piece.contiguous();
    backend.reduce_scatter(outputs, inputs)->wait();
  }
  if (!out.is_contiguous()) out.copy_(outputs[0]);
}

}  // namespace shardwise::comm
