#include "tests/comm/collective_calls.h"

#include <ATen/ops/from_blob.h>

#include "tests/comm/case_on_rank.h"

namespace shardwise::testing {
namespace {

using base::Range;

void broadcast(CaseOnRank& c) {
  at::Tensor x = c.input(c.rank(), c.full());
  c.group().broadcast_(x, c.root());
  c.expect(x, c.message_of(c.root(), c.full()));
}

void all_gather(CaseOnRank& c) {
  const at::Tensor full = c.group().all_gather(c.input(c.rank(), c.shard()), c.split());
  if (c.size() > 1) c.overwrite_inputs();  // a group of one returns the input itself
  c.expect(full, gathered(c));
}

void all_gather_out(CaseOnRank& c) {
  at::Tensor full = c.output(c.full());
  c.group().all_gather_out(full, c.input(c.rank(), c.shard()), c.split());
  if (c.size() > 1) c.overwrite_inputs();
  c.expect(full, gathered(c));
}

void all_reduce(CaseOnRank& c) {
  const at::Tensor y = c.group().all_reduce(c.input(c.rank(), c.full()), c.reduce());
  if (c.size() > 1) c.overwrite_inputs();
  c.expect(y, c.sum(c.full()));
}

void all_reduce_in_place(CaseOnRank& c) {
  at::Tensor x = c.input(c.rank(), c.full());
  c.group().all_reduce_(x, c.reduce());
  c.expect(x, c.sum(c.full()));
}

void reduce_scatter(CaseOnRank& c) {
  const at::Tensor y = c.group().reduce_scatter(c.input(c.rank(), c.full()), c.split());
  if (c.size() > 1) c.overwrite_inputs();
  c.expect(y, c.sum(c.shard()));
}

void reduce_scatter_out(CaseOnRank& c) {
  at::Tensor out = c.output(c.shard());
  c.group().reduce_scatter_out(out, c.input(c.rank(), c.full()), c.split());
  c.expect_inputs_unchanged();
  c.expect(out, c.sum(c.shard()));
}

void scatter(CaseOnRank& c) {
  const at::Tensor y = c.group().scatter(c.input(c.rank(), c.full()), c.root());
  if (c.size() > 1) c.overwrite_inputs();
  c.expect(y, c.message_of(c.root(), c.shard()));
}

void gather(CaseOnRank& c) {
  const at::Tensor y = c.group().gather(c.input(c.rank(), c.shard()), c.root());
  if (c.size() > 1) c.overwrite_inputs();
  if (c.rank() == c.root()) c.expect(y, gathered(c));
  if (c.rank() != c.root() && y.defined())
    throw std::runtime_error("gather must return a result at the root only");
}

at::Tensor exchanged(const CaseOnRank& c) {
  std::vector<at::Tensor> pieces;
  for (int peer = 0; peer < c.size(); ++peer) pieces.push_back(c.message_of(peer, c.shard()));
  return at::cat(pieces);
}

void all_to_all(CaseOnRank& c) {
  const at::Tensor y = c.group().all_to_all(c.input(c.rank(), c.full()));
  if (c.size() > 1) c.overwrite_inputs();
  c.expect(y, exchanged(c));
}

void send_and_receive(CaseOnRank& c) {
  c.group().send(c.input(c.rank(), c.full()), (c.rank() + 1) % c.size(), /*tag=*/3);
  c.overwrite_inputs();
  at::Tensor x = c.output(c.full());
  const int previous = (c.rank() + c.size() - 1) % c.size();
  c.group().recv_(x, previous, /*tag=*/3);
  c.expect(x, c.message_of(previous, c.full()));
}

void share_shard(CaseOnRank& c) {
  const auto shards = c.group().share_shard(c.input(c.rank(), c.shard()), c.split());
  for (int peer = 0; peer < c.size(); ++peer)
    c.expect(shards->get(peer), c.message_of(peer, c.split().range(peer)));
}

// ---- Group's asynchronous, chunked and fused collectives

// The barrier is a collective between the start and the wait.
void all_reduce_async(CaseOnRank& c) {
  const at::Tensor x = c.allocated_by_group(c.message_of(c.rank(), c.full()));
  const auto work = c.group().all_reduce_async_(x);
  c.group().barrier();
  work->wait();
  c.expect(x, c.sum(c.full()));
}

void all_gather_out_async(CaseOnRank& c) {
  const at::Tensor full = c.allocated_by_group(c.unwritten(c.full()));
  const auto work = c.group().all_gather_out_async(full, c.input(c.rank(), c.shard()), c.split());
  c.group().barrier();
  work->wait();
  for (int peer = 0; peer < c.size(); ++peer) {
    const Range rows = c.split().range(peer);
    c.expect(full.narrow(0, rows.begin, rows.size()), c.message_of(peer, rows));
  }
}

void all_gather_chunked(CaseOnRank& c) {
  const auto chunks = c.group().all_gather_chunked(c.input(c.rank(), c.shard()), c.split());
  for (int peer = 0; peer < c.size(); ++peer) {
    const Range rows = c.split().range(peer);
    chunks->wait_chunk(peer);
    c.expect(chunks->output().narrow(0, rows.begin, rows.size()), c.message_of(peer, rows));
  }
}

void reduce_scatter_chunked(CaseOnRank& c) {
  const at::Tensor x = c.allocated_by_group(c.unwritten(c.full()));
  const auto sum = c.group().reduce_scatter_chunked(x, c.split());
  for (int i = 0; i < c.size(); ++i) {
    const Range rows = c.split().range(sum->chunk_order(i));
    x.narrow(0, rows.begin, rows.size()).copy_(c.message_of(c.rank(), rows));
    sum->chunk_ready(i);
  }
  at::Tensor out = c.unwritten(c.shard());
  sum->wait(out);
  c.expect(out, c.sum(c.shard()));
}

void expect_messages(const CaseOnRank& c, comm::PeerBuffers buffers) {
  for (int peer = 0; peer < c.size(); ++peer) {
    const at::Tensor expected = c.message_of(peer, c.full());
    void* const buffer = const_cast<void*>(buffers[size_t(peer)]);
    c.expect(at::from_blob(buffer, expected.sizes(), expected.options()), expected, "a peer's buffer");
  }
}

void fused_all_reduce(CaseOnRank& c) {
  c.group().fused_all_reduce(c.input(c.rank(), c.full()),
                             [&](comm::PeerBuffers buffers) { expect_messages(c, buffers); });
}

void fused_reduce_scatter(CaseOnRank& c) {
  c.group().fused_reduce_scatter(c.input(c.rank(), c.full()), c.split(),
                                 [&](comm::PeerBuffers buffers) { expect_messages(c, buffers); });
}

std::vector<CollectiveCall> make_collective_calls() {
  constexpr bool yes = true;
  std::vector<CollectiveCall> calls = {
      call("broadcast_", {.is_group_call = yes}, broadcast),
      call("all_gather", {.supports_uneven = yes, .is_group_call = yes}, all_gather),
      call("all_gather_out", {.supports_uneven = yes, .is_group_call = yes}, all_gather_out),
      call("all_reduce", {.reduces = yes, .supports_uneven = yes, .is_group_call = yes}, all_reduce),
      call("all_reduce_", {.reduces = yes, .supports_uneven = yes, .is_group_call = yes},
           all_reduce_in_place),
      call("reduce_scatter", {.supports_uneven = yes, .is_group_call = yes}, reduce_scatter),
      call("reduce_scatter_out", {.supports_uneven = yes, .is_group_call = yes}, reduce_scatter_out),
      call("scatter", {.is_group_call = yes}, scatter),
      call("gather", {.is_group_call = yes}, gather),
      call("all_to_all", {.is_group_call = yes}, all_to_all),
      call("send and recv_", {.is_group_call = yes, .needs_peer = yes, .is_point_to_point = yes},
           send_and_receive),
      call("share_shard", {.supports_uneven = yes, .is_deferred = yes}, share_shard),
      call("all_reduce_async_ and barrier", {.supports_uneven = yes, .is_group_call = yes}, all_reduce_async),
      call("all_gather_out_async and barrier", {.supports_uneven = yes, .is_group_call = yes},
           all_gather_out_async),
      call("all_gather_chunked", {.supports_uneven = yes, .is_group_call = yes}, all_gather_chunked),
      call("reduce_scatter_chunked",
           {.supports_uneven = yes, .is_group_call = yes, .needs_peer = yes, .is_deferred = yes},
           reduce_scatter_chunked),
      call("fused_all_reduce", {.supports_uneven = yes}, fused_all_reduce),
      call("fused_reduce_scatter", {.supports_uneven = yes}, fused_reduce_scatter),
      call("barrier", {.is_group_call = yes, .has_content = false},
           [](CaseOnRank& c) { c.group().barrier(); }),
  };
  std::ranges::move(c10d_calls(), std::back_inserter(calls));
  return calls;
}

}  // namespace

TestGroup connect_test_group(const comm::shm::ConnectOptions& options) {
  const auto transport = comm::shm::Transport::connect(options);
  const auto backend = c10::make_intrusive<comm::shm::Backend>(transport);
  return {backend, options.size == 1 ? comm::Group() : comm::Group(transport)};
}

const std::vector<CollectiveCall>& collective_calls() {
  static const std::vector<CollectiveCall> all = make_collective_calls();
  return all;
}

}  // namespace shardwise::testing
