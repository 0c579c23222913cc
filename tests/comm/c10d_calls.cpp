// The collectives of c10d's interface.
#include "tests/comm/case_on_rank.h"
#include "tests/comm/messages.h"

namespace shardwise::testing {
namespace {

using base::Range;
using comm::Reduce;
using RedOp = c10d::ReduceOp::RedOpType;

RedOp operation(Reduce reduce) {
  constexpr RedOp operations[comm::kReductions] = {RedOp::SUM, RedOp::PRODUCT, RedOp::MIN, RedOp::MAX,
                                                   RedOp::AVG, RedOp::BAND,    RedOp::BOR, RedOp::BXOR};
  return operations[int(reduce)];
}

template <typename Options>
Options reducing(const CaseOnRank& c) {
  Options options;
  options.reduceOp = operation(c.reduce());
  return options;
}

void c10d_broadcast(CaseOnRank& c) {
  Tensors x = {c.input(c.rank(), c.full())};
  c.backend().broadcast(x, {.rootRank = c.root()})->wait();
  c.expect(x[0], c.message_of(c.root(), c.full()));
}

void c10d_allreduce(CaseOnRank& c) {
  Tensors x = {c.input(c.rank(), c.full())};
  c.backend().allreduce(x, reducing<c10d::AllreduceOptions>(c))->wait();
  c.expect(x[0], c.sum(c.full()));
}

void c10d_allreduce_coalesced(CaseOnRank& c) {
  Tensors x = {c.input(c.rank(), c.full()), c.input(c.rank(), c.split().range(0))};
  c.backend().allreduce_coalesced(x, reducing<c10d::AllreduceCoalescedOptions>(c))->wait();
  c.expect(x[0], c.sum(c.full()));
  c.expect(x[1], c.sum(c.split().range(0)));
}

void c10d_reduce(CaseOnRank& c) {
  Tensors x = {c.input(c.rank(), c.full())};
  auto options = reducing<c10d::ReduceOptions>(c);
  options.rootRank = c.root();
  c.backend().reduce(x, options)->wait();
  c.expect(x[0], c.rank() == c.root() ? c.sum(c.full()) : c.message_of(c.rank(), c.full()));
}

/// Returns an output for each rank's piece.
Tensors outputs_of(const CaseOnRank& c, const std::function<Range(int peer)>& range) {
  Tensors outputs;
  for (int peer = 0; peer < c.size(); ++peer) outputs.push_back(c.output(range(peer)));
  return outputs;
}

void c10d_allgather(CaseOnRank& c) {
  Tensors x = {c.input(c.rank(), c.shard())};
  std::vector<Tensors> pieces = {outputs_of(c, [&](int peer) { return c.split().range(peer); })};
  c.backend().allgather(pieces, x, {})->wait();
  c.overwrite_inputs();
  for (int peer = 0; peer < c.size(); ++peer)
    c.expect(pieces[0][size_t(peer)], c.message_of(peer, c.split().range(peer)));
}

void c10d_allgather_base(CaseOnRank& c) {
  at::Tensor x = c.input(c.rank(), c.shard()), full = c.contiguous_output(c.full());
  c.backend()._allgather_base(full, x, {})->wait();
  c.overwrite_inputs();
  c.expect(full, gathered(c));
}

void c10d_allgather_coalesced(CaseOnRank& c) {
  Tensors x = {c.input(c.rank(), c.shard()), c.input(c.rank(), c.shard())};
  Tensors outputs = {c.contiguous_output(c.full()), c.contiguous_output(c.full())};
  c.backend().allgather_into_tensor_coalesced(outputs, x, {})->wait();
  c.overwrite_inputs();
  for (const at::Tensor& full : outputs) c.expect(full, gathered(c));
}

void c10d_reduce_scatter(CaseOnRank& c) {
  std::vector<Tensors> pieces(1);
  for (int peer = 0; peer < c.size(); ++peer) pieces[0].push_back(c.input(c.rank(), c.split().range(peer)));
  Tensors out = {c.output(c.shard())};
  c.backend().reduce_scatter(out, pieces, reducing<c10d::ReduceScatterOptions>(c))->wait();
  c.overwrite_inputs();
  c.expect(out[0], c.sum(c.shard()));
}

void c10d_reduce_scatter_base(CaseOnRank& c) {
  at::Tensor x = c.input(c.rank(), c.full()), out = c.output(c.shard());
  c.backend()._reduce_scatter_base(out, x, reducing<c10d::ReduceScatterOptions>(c))->wait();
  c.overwrite_inputs();
  c.expect(out, c.sum(c.shard()));
}

void c10d_reduce_scatter_coalesced(CaseOnRank& c) {
  Tensors x = {c.input(c.rank(), c.full()), c.input(c.rank(), c.full())};
  Tensors outs = {c.output(c.shard()), c.output(c.shard())};
  c.backend().reduce_scatter_tensor_coalesced(outs, x, reducing<c10d::ReduceScatterOptions>(c))->wait();
  c.overwrite_inputs();
  for (const at::Tensor& out : outs) c.expect(out, c.sum(c.shard()));
}

void c10d_scatter(CaseOnRank& c) {
  std::vector<Tensors> pieces;
  if (c.rank() == c.root()) pieces.emplace_back();
  for (int peer = 0; c.rank() == c.root() && peer < c.size(); ++peer)
    pieces[0].push_back(c.input(c.root(), c.split().range(peer)));
  Tensors out = {c.output(c.shard())};
  c.backend().scatter(out, pieces, {.rootRank = c.root()})->wait();
  c.overwrite_inputs();
  c.expect(out[0], c.message_of(c.root(), c.shard()));
}

void c10d_gather(CaseOnRank& c) {
  Tensors x = {c.input(c.rank(), c.shard())};
  std::vector<Tensors> pieces;
  if (c.rank() == c.root()) pieces.push_back(outputs_of(c, [&](int peer) { return c.split().range(peer); }));
  c.backend().gather(pieces, x, {.rootRank = c.root()})->wait();
  c.overwrite_inputs();
  for (int peer = 0; c.rank() == c.root() && peer < c.size(); ++peer)
    c.expect(pieces[0][size_t(peer)], c.message_of(peer, c.split().range(peer)));
}

void c10d_alltoall(CaseOnRank& c) {
  Tensors x, y = outputs_of(c, [&](int peer) { return c.between(peer, c.rank()); });
  for (int peer = 0; peer < c.size(); ++peer) x.push_back(c.input(c.rank(), c.between(c.rank(), peer)));
  c.backend().alltoall(y, x, {})->wait();
  c.overwrite_inputs();
  for (int peer = 0; peer < c.size(); ++peer)
    c.expect(y[size_t(peer)], c.message_of(peer, c.between(peer, c.rank())));
}

// Each rank's pieces are stored consecutively.
void c10d_alltoall_base(CaseOnRank& c) {
  Tensors expected;
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (int peer = 0; peer < c.size(); ++peer) {
    int64_t before = 0;  // the size of the peer's pieces for lower ranks
    for (int rank = 0; rank < c.rank(); ++rank) before += c.between(peer, rank).size();
    sizes.push_back(c.between(peer, c.rank()).size());
    expected.push_back(c.message_of(peer, {before, before + sizes.back()}));
    begin += sizes.back();
  }
  at::Tensor x = c.input(c.rank(), c.full()), y = c.output({0, begin});
  std::vector<int64_t> output_sizes = sizes;  // between() is symmetric
  c.backend().alltoall_base(y, x, output_sizes, sizes, {})->wait();
  c.overwrite_inputs();
  c.expect(y, at::cat(expected));
}

void c10d_send_and_receive(CaseOnRank& c) {
  const int previous = (c.rank() + c.size() - 1) % c.size();
  const at::Tensor y = c.output(c.full());
  const WorkPtr work = irecv(c.backend(), y, previous, /*tag=*/4);
  send(c.backend(), c.input(c.rank(), c.full()), (c.rank() + 1) % c.size(), /*tag=*/4);
  c.overwrite_inputs();
  work->wait();
  c.expect(y, c.message_of(previous, c.full()));
}

// The barrier keeps the messages of a following call, which may come from other ranks, out of these receives.
void c10d_receive_from_any(CaseOnRank& c) {
  if (c.rank() != c.root()) {
    send(c.backend(), c.input(c.rank(), c.full()), c.root(), /*tag=*/5);
    c.overwrite_inputs();
  }
  for (int i = 1; c.rank() == c.root() && i < c.size(); ++i) {
    const at::Tensor y = c.output(c.full());
    const WorkPtr work = irecv_any(c.backend(), y, /*tag=*/5);
    work->wait();
    c.expect(y, c.message_of(work->sourceRank(), c.full()));
  }
  c.backend().barrier({})->wait();
}

}  // namespace

std::vector<CollectiveCall> c10d_calls() {
  constexpr bool yes = true;
  return {
      call("c10d broadcast", {}, c10d_broadcast),
      call("c10d allreduce", {.reduces = yes, .supports_uneven = yes}, c10d_allreduce),
      call("c10d allreduce_coalesced", {.reduces = yes, .supports_uneven = yes}, c10d_allreduce_coalesced),
      call("c10d reduce (reduce_scatter)", {.reduces = yes}, c10d_reduce),
      call("c10d allgather", {.supports_uneven = yes}, c10d_allgather),
      call("c10d _allgather_base", {}, c10d_allgather_base),
      call("c10d allgather_into_tensor_coalesced", {}, c10d_allgather_coalesced),
      call("c10d reduce_scatter", {.reduces = yes, .supports_uneven = yes}, c10d_reduce_scatter),
      call("c10d _reduce_scatter_base", {.reduces = yes}, c10d_reduce_scatter_base),
      call("c10d reduce_scatter_tensor_coalesced", {.reduces = yes}, c10d_reduce_scatter_coalesced),
      call("c10d scatter", {.supports_uneven = yes}, c10d_scatter),
      call("c10d gather", {.supports_uneven = yes}, c10d_gather),
      call("c10d alltoall", {.supports_uneven = yes}, c10d_alltoall),
      call("c10d alltoall_base", {.supports_uneven = yes}, c10d_alltoall_base),
      call("c10d send and recv", {.is_point_to_point = yes}, c10d_send_and_receive),
      call("c10d send, recvAnysource and barrier", {.is_point_to_point = yes}, c10d_receive_from_any),
      call("c10d barrier", {.has_content = false}, [](CaseOnRank& c) { c.backend().barrier({})->wait(); }),
      call("c10d monitoredBarrier (send and recv)", {.has_content = false, .is_point_to_point = yes},
           [](CaseOnRank& c) { c.backend().monitoredBarrier({}, /*name_all=*/true); }),
  };
}

}  // namespace shardwise::testing
