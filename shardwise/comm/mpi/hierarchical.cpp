#include "shardwise/comm/mpi/hierarchical.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "shardwise/base/error.h"
#include "shardwise/base/split.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::comm::mpi {
namespace {

using base::Split;

/// A message is reduced in parts, so that the memory for it is bounded.
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

Hosts Hosts::of(const Meeting& meeting) {
  Hosts hosts;
  std::vector<uint64_t> names;
  for (int rank = 0; rank < meeting.size(); ++rank) {
    const size_t host =
        size_t(std::find(names.begin(), names.end(), meeting.hosts[size_t(rank)]) - names.begin());
    if (host == names.size()) {
      names.push_back(meeting.hosts[size_t(rank)]);
      hosts.ranks.emplace_back();
    }
    if (rank == meeting.rank) {
      hosts.own = static_cast<int>(host);
      hosts.local = static_cast<int>(hosts.ranks[host].size());
    }
    hosts.ranks[host].push_back(rank);
  }
  return hosts;
}

bool Hosts::is_even() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const std::vector<int>& host) { return host.size() == ranks[0].size(); });
}

Group join_host(const Options& options, const Hosts& hosts) {
  const int first = options.ranks[size_t(hosts.ranks[size_t(hosts.own)].front())];
  shm::Options inside(fmt::format("{}/{}/{}", options.job, options.name, first), hosts.local,
                      hosts.local_count());
  inside.timeout = options.timeout;
  return shm::connect(inside);
}

Hierarchical::Hierarchical(const Options& options, Meeting meeting, Hosts hosts)
    : Transport(options, std::move(meeting)), inside_(join_host(options, hosts)), hosts_(std::move(hosts)) {
  for (const std::vector<int>& host : hosts_.ranks) column_.push_back(host[size_t(hosts_.local)]);
}

// Whoever waits in one of the two groups must hear of what went wrong in the other.
template <class Call>
void Hierarchical::across(const Call& call) {
  try {
    call();
  } catch (const base::CommError& error) {
    inside_.abort(base::one_line(error));
    throw;
  }
}

template <class Call>
void Hierarchical::inside(const Call& call) {
  try {
    call();
  } catch (const base::CommError& error) {
    const std::vector<int>& host = hosts_.ranks[size_t(hosts_.own)];
    const std::string what = fmt::format("on the host of ranks {}, numbered from 0: {}",
                                         fmt::join(host, ", "), base::one_line(error));
    Transport::abort(what);
    base::CommError::Where where = error.where();
    where.rank = rank();
    if (where.peer >= 0) where.peer = host[size_t(where.peer)];
    where.sequence = channel().sequence();
    throw base::CommError(where, what);
  }
}

void Hierarchical::abort(const std::string& reason) {
  Transport::abort(reason);
  inside_.abort(reason);
}

void Hierarchical::set_timeout(std::chrono::milliseconds timeout) {
  Transport::set_timeout(timeout);
  dynamic_cast<CollectiveBackend&>(*inside_.symmetric_heap()).set_timeout(timeout);
}

void Hierarchical::limit_collectives(std::chrono::milliseconds limit) {
  Transport::limit_collectives(limit);
  dynamic_cast<CollectiveBackend&>(*inside_.symmetric_heap()).limit_collectives(limit);
}

at::Tensor Hierarchical::sum_across(const at::Tensor& sum, const std::vector<int64_t>& sizes, Reduce reduce) {
  const Tensors parts = cut(sum, sizes);
  at::Tensor own = parts[size_t(hosts_.own)];
  across([&] { reduce_pieces(own, parts, Reduce::sum, column_); });
  return reduce == Reduce::average ? own.div_(size()) : own;
}

void Hierarchical::all_reduce_(at::Tensor& x, Reduce reduce) {
  if (!is_sum(x, reduce) || channel().fits_payload(x.nbytes())) return Transport::all_reduce_(x, reduce);
  Descriptor descriptor = descriptor_of(Op::all_reduce, x, x.numel());
  descriptor.reduce = reduce;
  across([&] { channel().open(descriptor); });
  const at::Tensor dense = x.contiguous(), flat = dense.view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += kPartElements) {
    at::Tensor part = flat.narrow(0, begin, std::min(kPartElements, flat.numel() - begin));
    reduce_part(part, reduce);
  }
  put_back(x, dense);
}

void Hierarchical::reduce_part(at::Tensor& part, Reduce reduce) {
  const Split slices = Split::even("slices", part.numel(), hosts_.local_count());
  const at::Tensor terms = inside_.empty(part.sizes(), accumulator(part.scalar_type()));
  terms.copy_(part);
  at::Tensor sum = at::empty({slices.range(hosts_.local).size()}, terms.options());
  inside([&] { inside_.reduce_scatter_out(sum, terms, slices); });
  const at::Tensor slice = inside_.empty(sum.sizes(), part.scalar_type());
  const Tensors pieces = cut_evenly(slice, hosts_.count());
  std::vector<int64_t> sizes;
  for (const at::Tensor& piece : pieces) sizes.push_back(piece.numel());
  const at::Tensor own = pieces[size_t(hosts_.own)];
  own.copy_(sum_across(sum, sizes, reduce));  // the only rounding
  across([&] { gather_pieces(pieces, own, column_); });
  inside([&] { inside_.symmetric_heap()->all_gather_out(part, slice, slices, /*dim=*/0); });
}

std::vector<int64_t> Hierarchical::column_sizes(const Tensors& pieces, int local) const {
  std::vector<int64_t> sizes;
  for (const std::vector<int>& host : hosts_.ranks)
    sizes.push_back(pieces[size_t(host[size_t(local)])].numel());
  return sizes;
}

int64_t Hierarchical::largest_column(const Tensors& pieces) const {
  int64_t largest = 0;
  for (int local = 0; local < hosts_.local_count(); ++local)
    largest = std::max(largest, sum_of(column_sizes(pieces, local)));
  return largest;
}

// Row l of the terms is what the ranks in place l of all hosts will get.
void Hierarchical::reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) {
  if (!is_sum(out, reduce)) return Transport::reduce_scatter(out, pieces, reduce);
  Descriptor descriptor = descriptor_of(Op::reduce_scatter, out, pieces);
  descriptor.reduce = reduce;
  across([&] { channel().open(descriptor); });
  const int locals = hosts_.local_count();
  const int64_t width = largest_column(pieces);
  at::Tensor terms = inside_.empty({locals, width}, accumulator(out.scalar_type()));
  for (int local = 0; local < locals; ++local) {
    const std::vector<int64_t> sizes = column_sizes(pieces, local);
    const Tensors row = cut(terms[local], sizes);
    for (int host = 0; host < hosts_.count(); ++host) {
      const at::Tensor& piece = pieces[size_t(hosts_.ranks[size_t(host)][size_t(local)])];
      row[size_t(host)].copy_(piece.reshape({-1}));
    }
    terms[local].slice(0, sum_of(sizes), width).zero_();
  }
  at::Tensor sum = at::empty({1, width}, terms.options());
  inside([&] { inside_.reduce_scatter_out(sum, terms, one_row_each(locals)); });
  const std::vector<int64_t> sizes = column_sizes(pieces, hosts_.local);
  out.copy_(sum_across(sum[0].narrow(0, 0, sum_of(sizes)), sizes, reduce).view(out.sizes()));
}

void Hierarchical::all_gather(Tensors& pieces, const at::Tensor& shard) {
  across([&] { channel().open(descriptor_of(Op::all_gather, shard, pieces)); });
  const int64_t width = largest_column(pieces);
  const at::Tensor bundle = inside_.empty({1, width}, shard.scalar_type());
  const Tensors parts = cut(bundle[0], column_sizes(pieces, hosts_.local));
  parts[size_t(hosts_.own)].copy_(shard.reshape({-1}));
  across([&] { gather_pieces(parts, parts[size_t(hosts_.own)], column_); });
  inside([&] {
    const auto bundles = inside_.share_shard(bundle, one_row_each(hosts_.local_count()));
    for (int local = 0; local < hosts_.local_count(); ++local) {
      const Tensors theirs = cut(bundles->read(local)[0], column_sizes(pieces, local));
      for (int host = 0; host < hosts_.count(); ++host) {
        at::Tensor& piece = pieces[size_t(hosts_.ranks[size_t(host)][size_t(local)])];
        piece.copy_(theirs[size_t(host)].view(piece.sizes()));
      }
    }
  });
}

// From the root to the ranks in its place on the other hosts, then on each host to the others.
void Hierarchical::broadcast_(at::Tensor& x, int root) {
  across([&] { channel().open(descriptor_of(Op::broadcast, x, x.numel(), root)); });
  at::Tensor dense = rank() == root ? x.contiguous() : dense_like(x);
  int place = 0;
  for (const std::vector<int>& host : hosts_.ranks) {
    const auto found = std::find(host.begin(), host.end(), root);
    if (found != host.end()) place = static_cast<int>(found - host.begin());
  }
  if (place == hosts_.local) across([&] { broadcast_dense(dense, root, column_); });
  inside([&] { inside_.broadcast_(dense, place); });
  if (rank() != root) put_back(x, dense);
}

}  // namespace shardwise::comm::mpi
