#include "tests/comm/collective_calls.h"

#include <ATen/ops/cat.h>

#include <stdexcept>

#include "tests/comm/messages.h"

namespace shardwise::testing {
namespace {

using base::Range;
using base::Split;
using comm::Group;
using comm::Reduce;
using comm::shm::Backend;
using RedOp = c10d::ReduceOp::RedOpType;

/// A case on one rank: creates inputs and outputs, and checks them after the call.
class CaseOnRank {
 public:
  explicit CaseOnRank(const Case& c)
      : c_(c),
        split_(Split::even("grid", c.even ? (c.numel + size() - 1) / size() * size() : c.numel, size(),
                           c.even ? 1 : c.numel / (2 * size()) + 1)),
        group_(c.use_heap ? c.at.group : c.at.group.without_symmetric_heap()) {}

  int rank() const { return c_.at.backend->getRank(); }
  int size() const { return c_.at.backend->getSize(); }
  int root() const { return int(c_.numel % size()); }
  Backend& backend() const { return *c_.at.backend; }
  const Group& group() const { return group_; }
  const Split& split() const { return split_; }
  Reduce reduce() const { return c_.content.reduce; }

  Range full() const { return {0, split_.size()}; }
  Range shard() const { return split_.range(rank()); }
  /// Returns the elements that `from` sends to `to`; every rank sends and receives the same total.
  Range between(int from, int to) const { return split_.range((from + to) % size()); }

  at::Tensor message_of(int number, Range range) const { return message(c_.content, number, range); }
  at::Tensor sum(Range range) const { return reduced_message(c_.content, range); }

  /// Returns an input in the case's layout.
  at::Tensor input(int number, Range range) {
    inputs_.push_back(
        {with_layout(c_.at.group, message_of(number, range), c_.layout), message_of(number, range)});
    return inputs_.back().first;
  }
  at::Tensor output(Range range) const { return with_layout(c_.at.group, unwritten(range), c_.layout); }
  /// Returns a contiguous output, for calls that need one.
  at::Tensor contiguous_output(Range range) const {
    const bool in_heap = c_.layout == InputLayout::in_heap || c_.layout == InputLayout::strided_in_heap;
    return with_layout(c_.at.group, unwritten(range),
                       in_heap ? InputLayout::in_heap : InputLayout::unregistered);
  }

  void expect(const at::Tensor& result, const at::Tensor& expected, const char* what = "the result") const {
    const bool is_equal = result.defined() && result.scalar_type() == expected.scalar_type() &&
                          result.sizes() == expected.sizes() && at::equal(result, expected);
    if (!is_equal) throw std::runtime_error(std::string(what) + " differs from the expected values");
  }
  void expect_inputs_unchanged() const {
    for (const auto& [x, before] : inputs_) expect(x, before, "an input after the call");
  }
  /// Overwrites the inputs, as callers may after the call: a peer that still reads them gets a wrong result.
  void overwrite_inputs() {
    expect_inputs_unchanged();
    for (auto& [x, before] : inputs_) x.fill_(99);
  }

 private:
  at::Tensor unwritten(Range range) const { return at::full({range.size()}, 77, c_.content.dtype); }

  const Case& c_;
  Split split_;
  Group group_;
  std::vector<std::pair<at::Tensor, at::Tensor>> inputs_;
};

// ---- Group's collectives

void broadcast(CaseOnRank& c) {
  at::Tensor x = c.input(c.rank(), c.full());
  c.group().broadcast_(x, c.root());
  c.expect(x, c.message_of(c.root(), c.full()));
}

at::Tensor gathered(const CaseOnRank& c) {
  Tensors pieces;
  for (int peer = 0; peer < c.size(); ++peer) pieces.push_back(c.message_of(peer, c.split().range(peer)));
  return at::cat(pieces);
}

void all_gather(CaseOnRank& c) {
  const at::Tensor full = c.group().all_gather(c.input(c.rank(), c.shard()), c.split());
  if (c.size() > 1) c.overwrite_inputs();  // a group of one returns the input itself
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
  Tensors pieces;
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

// ---- c10d's collectives

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

CollectiveCall call(const char* name, CollectiveCall::Traits traits, void (*check)(CaseOnRank&)) {
  return {name, traits, [check](const Case& one) {
            CaseOnRank c(one);
            check(c);
          }};
}

std::vector<CollectiveCall> make_collective_calls() {
  constexpr bool yes = true;
  return {
      call("broadcast_", {.is_group_call = yes}, broadcast),
      call("all_gather", {.supports_uneven = yes, .is_group_call = yes}, all_gather),
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
      call("share_shard", {.supports_uneven = yes}, share_shard),
      call("barrier", {.is_group_call = yes, .has_content = false},
           [](CaseOnRank& c) { c.group().barrier(); }),
      call("c10d broadcast", {}, c10d_broadcast),
      call("c10d allreduce", {.reduces = yes, .supports_uneven = yes}, c10d_allreduce),
      call("c10d allreduce_coalesced", {.reduces = yes, .supports_uneven = yes}, c10d_allreduce_coalesced),
      call("c10d reduce", {.reduces = yes}, c10d_reduce),
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
      call("c10d send and recvAnysource", {.is_point_to_point = yes}, c10d_receive_from_any),
      call("c10d barrier", {.has_content = false}, [](CaseOnRank& c) { c.backend().barrier({})->wait(); }),
      call("c10d monitoredBarrier", {.has_content = false, .is_point_to_point = yes},
           [](CaseOnRank& c) { c.backend().monitoredBarrier({}, /*name_all=*/true); }),
  };
}

}  // namespace

TestGroup connect_test_group(const comm::shm::ConnectOptions& options) {
  const auto transport =
      std::make_shared<comm::shm::Transport>(comm::shm::rendezvous(options), options.rank, options.timeout);
  const auto backend = c10::make_intrusive<Backend>(transport);
  return {backend, options.size == 1 ? Group() : Group(transport)};
}

const std::vector<CollectiveCall>& collective_calls() {
  static const std::vector<CollectiveCall> all = make_collective_calls();
  return all;
}

}  // namespace shardwise::testing
