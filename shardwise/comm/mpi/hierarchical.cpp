#include "shardwise/comm/mpi/hierarchical.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/base/split.h"
#include "shardwise/comm/shm/shm.h"
#include "shardwise/comm/tensor_lists.h"

namespace shardwise::comm::mpi {
namespace {

using base::Split;

/// Large tensors are reduced in parts to bound the memory for staging.
constexpr int64_t kPartElements = int64_t{16} << 20;

at::ScalarType accumulator(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

bool is_sum(const at::Tensor& x, Reduce reduce) {
  if (reduce == Reduce::average) return x.is_floating_point();
  return reduce == Reduce::sum && x.scalar_type() != at::kBool;
}

Split one_row_each(int ranks) {
  return Split::even("ranks", ranks, ranks);
}

int64_t sum_of(const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

}  // namespace

Nodes Nodes::of(const Membership& membership) {
  Nodes nodes;
  std::vector<uint64_t> ids;
  for (int rank = 0; rank < membership.size(); ++rank) {
    const size_t node =
        size_t(std::find(ids.begin(), ids.end(), membership.nodes[size_t(rank)]) - ids.begin());
    if (node == ids.size()) {
      ids.push_back(membership.nodes[size_t(rank)]);
      nodes.ranks.emplace_back();
    }
    if (rank == membership.rank) {
      nodes.node = static_cast<int>(node);
      nodes.local_rank = static_cast<int>(nodes.ranks[node].size());
    }
    nodes.ranks[node].push_back(rank);
  }
  nodes.secret = membership.secrets[size_t(nodes.ranks[size_t(nodes.node)].front())];
  return nodes;
}

bool Nodes::is_even() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const std::vector<int>& node) { return node.size() == ranks[0].size(); });
}

Group connect_node(const ConnectOptions& options, const Nodes& nodes) {
  const int first = options.ranks[size_t(nodes.ranks[size_t(nodes.node)].front())];
  shm::ConnectOptions shm_options(fmt::format("{}/{}/{}", options.job, options.name, first), nodes.local_rank,
                                  nodes.local_size());
  shm_options.secret = nodes.secret;
  shm_options.timeout = options.timeout;
  return shm::connect(shm_options);
}

Hierarchical::Hierarchical(const ConnectOptions& options, Membership membership, Nodes nodes)
    : Transport(options, std::move(membership)),
      intra_node_group_(connect_node(options, nodes)),
      nodes_(std::move(nodes)) {
  for (const std::vector<int>& node : nodes_.ranks)
    inter_node_group_.push_back(node[size_t(nodes_.local_rank)]);
}

// A failure in one of the two groups must also abort the ranks that wait in the other.
template <class Call>
void Hierarchical::inter_node(const Call& call) {
  try {
    call();
  } catch (const base::CommError& error) {
    intra_node_group_.abort(base::one_line(error));
    throw;
  }
}

template <class Call>
void Hierarchical::intra_node(const Call& call) {
  try {
    call();
  } catch (const base::CommError& error) {
    const std::vector<int>& node = nodes_.ranks[size_t(nodes_.node)];
    const std::string what = fmt::format("on the node of ranks {}, in local ranks: {}", fmt::join(node, ", "),
                                         base::one_line(error));
    Transport::abort(what);
    base::CommError::Where where = error.where();
    where.rank = rank();
    if (where.peer >= 0) where.peer = node[size_t(where.peer)];
    where.sequence = channel().sequence();
    throw base::CommError(where, what);
  }
}

void Hierarchical::abort(const std::string& reason) {
  Transport::abort(reason);
  intra_node_group_.abort(reason);
}

void Hierarchical::set_timeout(std::chrono::milliseconds timeout) {
  Transport::set_timeout(timeout);
  intra_node_group_.backend()->set_timeout(timeout);
}

void Hierarchical::limit_collectives(std::chrono::milliseconds limit) {
  Transport::limit_collectives(limit);
  intra_node_group_.backend()->limit_collectives(limit);
}

at::Tensor Hierarchical::reduce_inter_node(const at::Tensor& partial, const std::vector<int64_t>& sizes,
                                           Reduce reduce) {
  const Tensors pieces = split_rows(partial, sizes);
  at::Tensor piece = pieces[size_t(nodes_.node)];
  inter_node([&] { reduce_pieces(piece, pieces, Reduce::sum, inter_node_group_); });
  return reduce == Reduce::average ? piece.div_(size()) : piece;
}

void Hierarchical::all_reduce_(at::Tensor& x, Reduce reduce) {
  if (!is_sum(x, reduce) || channel().fits_payload(x.nbytes())) return Transport::all_reduce_(x, reduce);
  Descriptor descriptor = descriptor_of(Op::all_reduce, x, x.numel());
  descriptor.reduce = reduce;
  inter_node([&] { channel().open(descriptor); });
  const at::Tensor dense = x.contiguous(), flat = dense.view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kPartElements) {
    at::Tensor part = flat.narrow(0, begin, std::min(kPartElements, flat.numel() - begin));
    reduce_part(part, reduce);
  }
  copy_back(x, dense);
}

void Hierarchical::reduce_part(at::Tensor& part, Reduce reduce) {
  const Split slices = Split::even("slices", part.numel(), nodes_.local_size());
  const at::Tensor input = intra_node_group_.empty(part.sizes(), accumulator(part.scalar_type()));
  input.copy_(part);
  at::Tensor partial = at::empty({slices.range(nodes_.local_rank).size()}, input.options());
  intra_node([&] { intra_node_group_.reduce_scatter_out(partial, input, slices); });
  const at::Tensor slice = intra_node_group_.empty(partial.sizes(), part.scalar_type());
  const Tensors pieces = split_evenly(slice, nodes_.count());
  std::vector<int64_t> sizes;
  for (const at::Tensor& piece : pieces) sizes.push_back(piece.numel());
  const at::Tensor piece = pieces[size_t(nodes_.node)];
  piece.copy_(reduce_inter_node(partial, sizes, reduce));  // the only rounding
  inter_node([&] { gather_pieces(pieces, piece, inter_node_group_); });
  intra_node([&] { intra_node_group_.symmetric_heap()->all_gather_out(part, slice, slices, /*dim=*/0); });
}

std::vector<int64_t> Hierarchical::inter_node_sizes(const Tensors& pieces, int local_rank) const {
  std::vector<int64_t> sizes;
  for (const std::vector<int>& node : nodes_.ranks)
    sizes.push_back(pieces[size_t(node[size_t(local_rank)])].numel());
  return sizes;
}

int64_t Hierarchical::largest_inter_node_size(const Tensors& pieces) const {
  int64_t largest = 0;
  for (int local_rank = 0; local_rank < nodes_.local_size(); ++local_rank)
    largest = std::max(largest, sum_of(inter_node_sizes(pieces, local_rank)));
  return largest;
}

// Row l of the input contains the pieces of the ranks with local rank l on all nodes.
void Hierarchical::reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) {
  if (!is_sum(out, reduce)) return Transport::reduce_scatter(out, pieces, reduce);
  Descriptor descriptor = descriptor_of(Op::reduce_scatter, out, pieces);
  descriptor.reduce = reduce;
  inter_node([&] { channel().open(descriptor); });
  const int local_size = nodes_.local_size();
  const int64_t width = largest_inter_node_size(pieces);
  at::Tensor input = intra_node_group_.empty({local_size, width}, accumulator(out.scalar_type()));
  for (int local_rank = 0; local_rank < local_size; ++local_rank) {
    const std::vector<int64_t> sizes = inter_node_sizes(pieces, local_rank);
    const Tensors row = split_rows(input[local_rank], sizes);
    for (int node = 0; node < nodes_.count(); ++node) {
      const at::Tensor& piece = pieces[size_t(nodes_.ranks[size_t(node)][size_t(local_rank)])];
      row[size_t(node)].copy_(piece.reshape({-1}));
    }
    input[local_rank].slice(0, sum_of(sizes), width).zero_();
  }
  at::Tensor partial = at::empty({1, width}, input.options());
  intra_node([&] { intra_node_group_.reduce_scatter_out(partial, input, one_row_each(local_size)); });
  const std::vector<int64_t> sizes = inter_node_sizes(pieces, nodes_.local_rank);
  out.copy_(reduce_inter_node(partial[0].narrow(0, 0, sum_of(sizes)), sizes, reduce).view(out.sizes()));
}

void Hierarchical::all_gather(Tensors& pieces, const at::Tensor& shard) {
  inter_node([&] { channel().open(descriptor_of(Op::all_gather, shard, pieces)); });
  const int64_t width = largest_inter_node_size(pieces);
  const at::Tensor node_parts = intra_node_group_.empty({1, width}, shard.scalar_type());
  const Tensors gathered = split_rows(node_parts[0], inter_node_sizes(pieces, nodes_.local_rank));
  gathered[size_t(nodes_.node)].copy_(shard.reshape({-1}));
  inter_node([&] { gather_pieces(gathered, gathered[size_t(nodes_.node)], inter_node_group_); });
  intra_node([&] {
    const auto all_parts = intra_node_group_.share_shard(node_parts, one_row_each(nodes_.local_size()));
    for (int local_rank = 0; local_rank < nodes_.local_size(); ++local_rank) {
      const Tensors parts = split_rows(all_parts->get(local_rank)[0], inter_node_sizes(pieces, local_rank));
      for (int node = 0; node < nodes_.count(); ++node) {
        at::Tensor& piece = pieces[size_t(nodes_.ranks[size_t(node)][size_t(local_rank)])];
        piece.copy_(parts[size_t(node)].view(piece.sizes()));
      }
    }
  });
}

// The root sends to the ranks with its local rank on the other nodes; these broadcast within their nodes.
void Hierarchical::broadcast_(at::Tensor& x, int root) {
  inter_node([&] { channel().open(descriptor_of(Op::broadcast, x, x.numel(), root)); });
  at::Tensor dense = rank() == root ? x.contiguous() : dense_like(x);
  int root_local_rank = 0;
  for (const std::vector<int>& node : nodes_.ranks) {
    const auto found = std::find(node.begin(), node.end(), root);
    if (found != node.end()) root_local_rank = static_cast<int>(found - node.begin());
  }
  if (root_local_rank == nodes_.local_rank)
    inter_node([&] { broadcast_dense(dense, root, inter_node_group_); });
  intra_node([&] { intra_node_group_.broadcast_(dense, root_local_rank); });
  if (rank() != root) copy_back(x, dense);
}

}  // namespace shardwise::comm::mpi
