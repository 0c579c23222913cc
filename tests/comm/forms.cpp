#include "tests/comm/forms.h"

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

/// A case on one rank: makes inputs and targets, and looks at them afterward.
class Call {
 public:
  explicit Call(const Case& c)
      : c_(c),
        split_(Split::even("grid", c.even ? (c.numel + size() - 1) / size() * size() : c.numel, size(),
                           c.even ? 1 : c.numel / (2 * size()) + 1)),
        group_(c.on_shared ? c.at.group : c.at.group.without_symmetric_heap()) {}

  int rank() const { return c_.at.backend->getRank(); }
  int size() const { return c_.at.backend->getSize(); }
  int root() const { return int(c_.numel % size()); }
  Backend& backend() const { return *c_.at.backend; }
  const Group& group() const { return group_; }
  const Split& split() const { return split_; }
  Reduce reduce() const { return c_.content.reduce; }

  Range whole() const { return {0, split_.size()}; }
  Range own() const { return split_.range(rank()); }
  /// Of what goes from one rank to another: as many elements from each rank, and to each.
  Range between(int from, int to) const { return split_.range((from + to) % size()); }

  at::Tensor sent(int number, Range range) const { return message(c_.content, number, range); }
  at::Tensor sum(Range range) const { return reduced_message(c_.content, range); }

  /// In the case's layout.
  at::Tensor input(int number, Range range) {
    inputs_.push_back({laid_out(c_.at.group, sent(number, range), c_.layout), sent(number, range)});
    return inputs_.back().first;
  }
  at::Tensor target(Range range) const { return laid_out(c_.at.group, nothing(range), c_.layout); }
  /// Where a form asks for contiguous ones.
  at::Tensor dense_target(Range range) const {
    const bool in_arena = c_.layout == Layout::in_arena || c_.layout == Layout::strided_in_arena;
    return laid_out(c_.at.group, nothing(range), in_arena ? Layout::in_arena : Layout::foreign);
  }

  void expect(const at::Tensor& result, const at::Tensor& expected, const char* what = "the result") const {
    const bool is_equal = result.defined() && result.scalar_type() == expected.scalar_type() &&
                          result.sizes() == expected.sizes() && at::equal(result, expected);
    if (!is_equal) throw std::runtime_error(std::string(what) + " differs from its closed form");
  }
  void inputs_are_unchanged() const {
    for (const auto& [x, before] : inputs_) expect(x, before, "an input afterward");
  }
  /// As callers may when the call is over: of a peer that still reads it would be seen in its result.
  void spoil_inputs() {
    inputs_are_unchanged();
    for (auto& [x, before] : inputs_) x.fill_(99);
  }

 private:
  at::Tensor nothing(Range range) const { return at::full({range.size()}, 77, c_.content.dtype); }

  const Case& c_;
  Split split_;
  Group group_;
  std::vector<std::pair<at::Tensor, at::Tensor>> inputs_;
};

// ---- Group's

void broadcast(Call& c) {
  at::Tensor x = c.input(c.rank(), c.whole());
  c.group().broadcast_(x, c.root());
  c.expect(x, c.sent(c.root(), c.whole()));
}

at::Tensor gathered(const Call& c) {
  Tensors pieces;
  for (int peer = 0; peer < c.size(); ++peer) pieces.push_back(c.sent(peer, c.split().range(peer)));
  return at::cat(pieces);
}

void all_gather(Call& c) {
  const at::Tensor whole = c.group().all_gather(c.input(c.rank(), c.own()), c.split());
  if (c.size() > 1) c.spoil_inputs();  // a group of one gives the input itself
  c.expect(whole, gathered(c));
}

void all_reduce(Call& c) {
  const at::Tensor y = c.group().all_reduce(c.input(c.rank(), c.whole()), c.reduce());
  if (c.size() > 1) c.spoil_inputs();
  c.expect(y, c.sum(c.whole()));
}

void all_reduce_in_place(Call& c) {
  at::Tensor x = c.input(c.rank(), c.whole());
  c.group().all_reduce_(x, c.reduce());
  c.expect(x, c.sum(c.whole()));
}

void reduce_scatter(Call& c) {
  const at::Tensor y = c.group().reduce_scatter(c.input(c.rank(), c.whole()), c.split());
  if (c.size() > 1) c.spoil_inputs();
  c.expect(y, c.sum(c.own()));
}

void reduce_scatter_out(Call& c) {
  at::Tensor out = c.target(c.own());
  c.group().reduce_scatter_out(out, c.input(c.rank(), c.whole()), c.split());
  c.inputs_are_unchanged();
  c.expect(out, c.sum(c.own()));
}

void scatter(Call& c) {
  const at::Tensor y = c.group().scatter(c.input(c.rank(), c.whole()), c.root());
  if (c.size() > 1) c.spoil_inputs();
  c.expect(y, c.sent(c.root(), c.own()));
}

void gather(Call& c) {
  const at::Tensor y = c.group().gather(c.input(c.rank(), c.own()), c.root());
  if (c.size() > 1) c.spoil_inputs();
  if (c.rank() == c.root()) c.expect(y, gathered(c));
  if (c.rank() != c.root() && y.defined()) throw std::runtime_error("gather gives all ranks the result");
}

at::Tensor exchanged(const Call& c) {
  Tensors pieces;
  for (int peer = 0; peer < c.size(); ++peer) pieces.push_back(c.sent(peer, c.own()));
  return at::cat(pieces);
}

void all_to_all(Call& c) {
  const at::Tensor y = c.group().all_to_all(c.input(c.rank(), c.whole()));
  if (c.size() > 1) c.spoil_inputs();
  c.expect(y, exchanged(c));
}

void send_and_receive(Call& c) {
  c.group().send(c.input(c.rank(), c.whole()), (c.rank() + 1) % c.size(), /*tag=*/3);
  c.spoil_inputs();
  at::Tensor x = c.target(c.whole());
  const int previous = (c.rank() + c.size() - 1) % c.size();
  c.group().recv_(x, previous, /*tag=*/3);
  c.expect(x, c.sent(previous, c.whole()));
}

void share_shard(Call& c) {
  const auto exposed = c.group().share_shard(c.input(c.rank(), c.own()), c.split());
  for (int peer = 0; peer < c.size(); ++peer)
    c.expect(exposed->read(peer), c.sent(peer, c.split().range(peer)));
}

// ---- c10d's

RedOp operation(Reduce reduce) {
  constexpr RedOp operations[comm::kReductions] = {RedOp::SUM, RedOp::PRODUCT, RedOp::MIN, RedOp::MAX,
                                                   RedOp::AVG, RedOp::BAND,    RedOp::BOR, RedOp::BXOR};
  return operations[int(reduce)];
}

template <typename Options>
Options reducing(const Call& c) {
  Options options;
  options.reduceOp = operation(c.reduce());
  return options;
}

void c10d_broadcast(Call& c) {
  Tensors x = {c.input(c.rank(), c.whole())};
  c.backend().broadcast(x, {.rootRank = c.root()})->wait();
  c.expect(x[0], c.sent(c.root(), c.whole()));
}

void c10d_allreduce(Call& c) {
  Tensors x = {c.input(c.rank(), c.whole())};
  c.backend().allreduce(x, reducing<c10d::AllreduceOptions>(c))->wait();
  c.expect(x[0], c.sum(c.whole()));
}

void c10d_allreduce_coalesced(Call& c) {
  Tensors x = {c.input(c.rank(), c.whole()), c.input(c.rank(), c.split().range(0))};
  c.backend().allreduce_coalesced(x, reducing<c10d::AllreduceCoalescedOptions>(c))->wait();
  c.expect(x[0], c.sum(c.whole()));
  c.expect(x[1], c.sum(c.split().range(0)));
}

void c10d_reduce(Call& c) {
  Tensors x = {c.input(c.rank(), c.whole())};
  auto options = reducing<c10d::ReduceOptions>(c);
  options.rootRank = c.root();
  c.backend().reduce(x, options)->wait();
  c.expect(x[0], c.rank() == c.root() ? c.sum(c.whole()) : c.sent(c.rank(), c.whole()));
}

/// A target for each rank's piece.
Tensors targets(const Call& c, const std::function<Range(int peer)>& range) {
  Tensors targets;
  for (int peer = 0; peer < c.size(); ++peer) targets.push_back(c.target(range(peer)));
  return targets;
}

void c10d_allgather(Call& c) {
  Tensors x = {c.input(c.rank(), c.own())};
  std::vector<Tensors> pieces = {targets(c, [&](int peer) { return c.split().range(peer); })};
  c.backend().allgather(pieces, x, {})->wait();
  c.spoil_inputs();
  for (int peer = 0; peer < c.size(); ++peer)
    c.expect(pieces[0][size_t(peer)], c.sent(peer, c.split().range(peer)));
}

void c10d_allgather_base(Call& c) {
  at::Tensor x = c.input(c.rank(), c.own()), whole = c.dense_target(c.whole());
  c.backend()._allgather_base(whole, x, {})->wait();
  c.spoil_inputs();
  c.expect(whole, gathered(c));
}

void c10d_allgather_coalesced(Call& c) {
  Tensors x = {c.input(c.rank(), c.own()), c.input(c.rank(), c.own())};
  Tensors wholes = {c.dense_target(c.whole()), c.dense_target(c.whole())};
  c.backend().allgather_into_tensor_coalesced(wholes, x, {})->wait();
  c.spoil_inputs();
  for (const at::Tensor& whole : wholes) c.expect(whole, gathered(c));
}

void c10d_reduce_scatter(Call& c) {
  std::vector<Tensors> pieces(1);
  for (int peer = 0; peer < c.size(); ++peer) pieces[0].push_back(c.input(c.rank(), c.split().range(peer)));
  Tensors out = {c.target(c.own())};
  c.backend().reduce_scatter(out, pieces, reducing<c10d::ReduceScatterOptions>(c))->wait();
  c.spoil_inputs();
  c.expect(out[0], c.sum(c.own()));
}

void c10d_reduce_scatter_base(Call& c) {
  at::Tensor x = c.input(c.rank(), c.whole()), out = c.target(c.own());
  c.backend()._reduce_scatter_base(out, x, reducing<c10d::ReduceScatterOptions>(c))->wait();
  c.spoil_inputs();
  c.expect(out, c.sum(c.own()));
}

void c10d_reduce_scatter_coalesced(Call& c) {
  Tensors x = {c.input(c.rank(), c.whole()), c.input(c.rank(), c.whole())};
  Tensors outs = {c.target(c.own()), c.target(c.own())};
  c.backend().reduce_scatter_tensor_coalesced(outs, x, reducing<c10d::ReduceScatterOptions>(c))->wait();
  c.spoil_inputs();
  for (const at::Tensor& out : outs) c.expect(out, c.sum(c.own()));
}

void c10d_scatter(Call& c) {
  std::vector<Tensors> pieces;
  if (c.rank() == c.root()) pieces.emplace_back();
  for (int peer = 0; c.rank() == c.root() && peer < c.size(); ++peer)
    pieces[0].push_back(c.input(c.root(), c.split().range(peer)));
  Tensors out = {c.target(c.own())};
  c.backend().scatter(out, pieces, {.rootRank = c.root()})->wait();
  c.spoil_inputs();
  c.expect(out[0], c.sent(c.root(), c.own()));
}

void c10d_gather(Call& c) {
  Tensors x = {c.input(c.rank(), c.own())};
  std::vector<Tensors> pieces;
  if (c.rank() == c.root()) pieces.push_back(targets(c, [&](int peer) { return c.split().range(peer); }));
  c.backend().gather(pieces, x, {.rootRank = c.root()})->wait();
  c.spoil_inputs();
  for (int peer = 0; c.rank() == c.root() && peer < c.size(); ++peer)
    c.expect(pieces[0][size_t(peer)], c.sent(peer, c.split().range(peer)));
}

void c10d_alltoall(Call& c) {
  Tensors x, y = targets(c, [&](int peer) { return c.between(peer, c.rank()); });
  for (int peer = 0; peer < c.size(); ++peer) x.push_back(c.input(c.rank(), c.between(c.rank(), peer)));
  c.backend().alltoall(y, x, {})->wait();
  c.spoil_inputs();
  for (int peer = 0; peer < c.size(); ++peer)
    c.expect(y[size_t(peer)], c.sent(peer, c.between(peer, c.rank())));
}

// What a rank sends lies one piece after another.
void c10d_alltoall_base(Call& c) {
  Tensors expected;
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (int peer = 0; peer < c.size(); ++peer) {
    int64_t before = 0;  // of the peer's pieces for the ranks before this one
    for (int rank = 0; rank < c.rank(); ++rank) before += c.between(peer, rank).size();
    sizes.push_back(c.between(peer, c.rank()).size());
    expected.push_back(c.sent(peer, {before, before + sizes.back()}));
    begin += sizes.back();
  }
  at::Tensor x = c.input(c.rank(), c.whole()), y = c.target({0, begin});
  std::vector<int64_t> taken = sizes;  // as between() is symmetric
  c.backend().alltoall_base(y, x, taken, sizes, {})->wait();
  c.spoil_inputs();
  c.expect(y, at::cat(expected));
}

void c10d_send_and_receive(Call& c) {
  const int previous = (c.rank() + c.size() - 1) % c.size();
  const at::Tensor y = c.target(c.whole());
  const WorkPtr work = irecv(c.backend(), y, previous, /*tag=*/4);
  send(c.backend(), c.input(c.rank(), c.whole()), (c.rank() + 1) % c.size(), /*tag=*/4);
  c.spoil_inputs();
  work->wait();
  c.expect(y, c.sent(previous, c.whole()));
}

// The barrier keeps the next one's messages, which may be other ranks', out of this one's receives.
void c10d_receive_from_any(Call& c) {
  if (c.rank() != c.root()) {
    send(c.backend(), c.input(c.rank(), c.whole()), c.root(), /*tag=*/5);
    c.spoil_inputs();
  }
  for (int i = 1; c.rank() == c.root() && i < c.size(); ++i) {
    const at::Tensor y = c.target(c.whole());
    const WorkPtr work = irecv_any(c.backend(), y, /*tag=*/5);
    work->wait();
    c.expect(y, c.sent(work->sourceRank(), c.whole()));
  }
  c.backend().barrier({})->wait();
}

Form form(const char* name, Form::Traits traits, void (*check)(Call&)) {
  return {name, traits, [check](const Case& one) {
            Call call(one);
            check(call);
          }};
}

std::vector<Form> all_forms() {
  constexpr bool yes = true;
  return {
      form("broadcast_", {.is_groups = yes}, broadcast),
      form("all_gather", {.cuts = yes, .is_groups = yes}, all_gather),
      form("all_reduce", {.reduces = yes, .cuts = yes, .is_groups = yes}, all_reduce),
      form("all_reduce_", {.reduces = yes, .cuts = yes, .is_groups = yes}, all_reduce_in_place),
      form("reduce_scatter", {.cuts = yes, .is_groups = yes}, reduce_scatter),
      form("reduce_scatter_out", {.cuts = yes, .is_groups = yes}, reduce_scatter_out),
      form("scatter", {.is_groups = yes}, scatter),
      form("gather", {.is_groups = yes}, gather),
      form("all_to_all", {.is_groups = yes}, all_to_all),
      form("send and recv_", {.is_groups = yes, .needs_peer = yes, .is_message = yes}, send_and_receive),
      form("share_shard", {.cuts = yes}, share_shard),
      form("barrier", {.is_groups = yes, .has_content = false}, [](Call& c) { c.group().barrier(); }),
      form("c10d broadcast", {}, c10d_broadcast),
      form("c10d allreduce", {.reduces = yes, .cuts = yes}, c10d_allreduce),
      form("c10d allreduce_coalesced", {.reduces = yes, .cuts = yes}, c10d_allreduce_coalesced),
      form("c10d reduce", {.reduces = yes}, c10d_reduce),
      form("c10d allgather", {.cuts = yes}, c10d_allgather),
      form("c10d _allgather_base", {}, c10d_allgather_base),
      form("c10d allgather_into_tensor_coalesced", {}, c10d_allgather_coalesced),
      form("c10d reduce_scatter", {.reduces = yes, .cuts = yes}, c10d_reduce_scatter),
      form("c10d _reduce_scatter_base", {.reduces = yes}, c10d_reduce_scatter_base),
      form("c10d reduce_scatter_tensor_coalesced", {.reduces = yes}, c10d_reduce_scatter_coalesced),
      form("c10d scatter", {.cuts = yes}, c10d_scatter),
      form("c10d gather", {.cuts = yes}, c10d_gather),
      form("c10d alltoall", {.cuts = yes}, c10d_alltoall),
      form("c10d alltoall_base", {.cuts = yes}, c10d_alltoall_base),
      form("c10d send and recv", {.is_message = yes}, c10d_send_and_receive),
      form("c10d send and recvAnysource", {.is_message = yes}, c10d_receive_from_any),
      form("c10d barrier", {.has_content = false}, [](Call& c) { c.backend().barrier({})->wait(); }),
      form("c10d monitoredBarrier", {.has_content = false, .is_message = yes},
           [](Call& c) { c.backend().monitoredBarrier({}, /*name_all=*/true); }),
  };
}

}  // namespace

Joined join(const comm::shm::Options& options) {
  const auto transport =
      std::make_shared<comm::shm::Transport>(comm::shm::meet(options), options.rank, options.timeout);
  const auto backend = c10::make_intrusive<Backend>(transport);
  return {backend, options.size == 1 ? Group() : Group(backend, transport)};
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = all_forms();
  return all;
}

}  // namespace shardwise::testing
