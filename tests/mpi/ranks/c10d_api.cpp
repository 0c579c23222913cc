// The c10d calls that Group does not use: tensor lists, coalesced calls, uneven splits, point-to-point
// messages.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <functional>

#include "shardwise/base/error.h"
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/mpi/transport.h"
#include "tests/comm/values.h"
#include "tests/mpi/ranks/ranks.h"

namespace shardwise::comm::mpi {
namespace {

using namespace shardwise::testing;
using Tensors = C10dBackend::Tensors;

c10::intrusive_ptr<C10dBackend> flat_backend() {
  const ConnectOptions options = new_options(Topology::flat);
  return c10::make_intrusive<C10dBackend>(std::make_shared<Transport>(options, rendezvous(options)));
}

C10dBackend& backend() {
  static const auto made = flat_backend();
  return *made;
}

at::Tensor of(int64_t numel, int rank) {
  return value({numel}, rank, at::kFloat);
}
at::Tensor sum(int64_t numel) {
  return reduced({numel}, backend().getSize(), Reduce::sum);
}
/// Returns a size that differs for every ordered pair of ranks; some are 0.
int64_t between(int from, int to) {
  return (7 * from + 3 * to) % 11 * 40;
}

class C10dApi : public ::testing::Test {
 protected:
  void TearDown() override { backend_.barrier({}); }
  C10dBackend& backend_ = backend();
  const int rank_ = backend_.getRank(), size_ = backend_.getSize();
};

TEST_F(C10dApi, CoalescedCallsProcessEveryTensor) {
  Tensors x = {of(5, rank_), of(4000, rank_), of(0, rank_)};
  backend_.allreduce_coalesced(x, {});
  EXPECT_TRUE(equals(x[0], sum(5)) && equals(x[1], sum(4000)));
  Tensors shards = {of(2, rank_), of(1000, rank_)};
  Tensors gathered = {at::empty({2 * size_}), at::empty({size_, 1000})};
  backend_.allgather_into_tensor_coalesced(gathered, shards, {});
  for (int peer = 0; peer < size_; ++peer) {
    EXPECT_TRUE(equals(gathered[0].narrow(0, 2 * peer, 2), of(2, peer)) &&
                equals(gathered[1][peer], of(1000, peer)));
  }
  Tensors inputs = {of(2 * size_, rank_), of(1000 * size_, rank_)},
          outputs = {at::empty({2}), at::empty({1000})};
  backend_.reduce_scatter_tensor_coalesced(outputs, inputs, {});
  EXPECT_TRUE(equals(outputs[0], sum(2 * size_).narrow(0, 2 * rank_, 2)));
  EXPECT_TRUE(equals(outputs[1], sum(1000 * size_).narrow(0, 1000 * rank_, 1000)));
}

TEST_F(C10dApi, ListCallsSupportUnevenPieces) {
  const auto numel_of = [](int rank) { return rank == 1 ? 0 : 5 + 3000 * rank; };
  Tensors input = {of(numel_of(rank_), rank_)};
  std::vector<Tensors> gathered(1), inputs(1);
  for (int peer = 0; peer < size_; ++peer) {
    gathered[0].push_back(at::empty({2 * numel_of(peer)}).slice(0, 0, at::nullopt, 2));  // strided targets
    inputs[0].push_back(of(numel_of(peer), rank_));
  }
  backend_.allgather(gathered, input, {});
  for (int peer = 0; peer < size_; ++peer)
    EXPECT_TRUE(equals(gathered[0][size_t(peer)], of(numel_of(peer), peer)));
  Tensors output = {at::empty({numel_of(rank_)})};
  backend_.reduce_scatter(output, inputs, {});
  EXPECT_TRUE(equals(output[0], sum(numel_of(rank_))));
}

TEST_F(C10dApi, AllToAllSupportsUnevenPieces) {
  Tensors inputs, outputs;
  std::vector<int64_t> sent, received;
  int64_t total_sent = 0, total_received = 0;
  for (int peer = 0; peer < size_; ++peer) {
    total_sent += sent.emplace_back(between(rank_, peer));
    total_received += received.emplace_back(between(peer, rank_));
    inputs.push_back(of(sent.back(), 10 * rank_ + peer));
    outputs.push_back(at::empty({received.back()}));
  }
  backend_.alltoall(outputs, inputs, {});
  for (int peer = 0; peer < size_; ++peer)
    EXPECT_TRUE(equals(outputs[size_t(peer)], of(received[size_t(peer)], 10 * peer + rank_)));

  at::Tensor input = at::empty({total_sent, 3}), output = at::empty({total_received, 3});
  for (int64_t peer = 0, begin = 0; peer < size_; begin += sent[size_t(peer)], ++peer)
    input.narrow(0, begin, sent[size_t(peer)]).fill_(10 * rank_ + peer);
  backend_.alltoall_base(output, input, received, sent, {});
  for (int64_t peer = 0, begin = 0; peer < size_; begin += received[size_t(peer)], ++peer)
    EXPECT_TRUE((output.narrow(0, begin, received[size_t(peer)]) == 10 * peer + rank_).all().item<bool>());
}

TEST_F(C10dApi, ReduceWritesTheSumOnTheRoot) {
  for (int root = 0; root < size_; ++root) {
    Tensors x = {of(3000, rank_)};
    c10d::ReduceOptions options;
    options.rootRank = root;
    backend_.reduce(x, options);
    EXPECT_TRUE(equals(x[0], rank_ == root ? sum(3000) : of(3000, rank_)));
  }
}

TEST_F(C10dApi, RanksMaySendBeforeTheyReceive) {
  const int next = (rank_ + 1) % size_, last = (rank_ + size_ - 1) % size_;
  for (const int64_t numel : {0, 1, 100, 3'000'000}) {  // beyond the eager limit of MPI
    Tensors out = {of(numel, rank_)}, in = {at::empty({2 * numel}).slice(0, 0, at::nullopt, 2)};
    backend_.send(out, next, /*tag=*/3);
    out[0].fill_(-1);
    EXPECT_TRUE(backend_.recv(in, last, /*tag=*/3)->wait(kNoTimeout));
    EXPECT_TRUE(equals(in[0], of(numel, last))) << numel;
  }
}

TEST_F(C10dApi, MessagesOfATagKeepTheirOrderAndTagsDoNotMix) {
  const int next = (rank_ + 1) % size_, last = (rank_ + size_ - 1) % size_;
  std::vector<Tensors> in(6);
  std::vector<C10dBackend::WorkPtr> works;
  for (int i = 0; i < 6; ++i) {
    in[size_t(i)] = {at::empty({10})};
    works.push_back(backend_.recv(in[size_t(i)], last, /*tag=*/i % 2));
  }
  for (const int i : {1, 0, 3, 2, 5, 4}) {
    Tensors out = {of(10, i)};
    backend_.send(out, next, /*tag=*/i % 2);
  }
  for (const int i : {5, 0, 3, 1, 4, 2}) {
    works[size_t(i)]->wait(kNoTimeout);
    EXPECT_EQ(works[size_t(i)]->sourceRank(), last);
    EXPECT_TRUE(equals(in[size_t(i)][0], of(10, i)));
  }
}

TEST_F(C10dApi, AnySourceReportsTheSender) {
  if (rank_ != 0) {
    Tensors out = {of(50'000, rank_)};
    backend_.send(out, 0, /*tag=*/7);
  }
  std::set<int> sources;
  for (int i = 1; rank_ == 0 && i < size_; ++i) {
    Tensors in = {at::empty({50'000})};
    const auto work = backend_.recvAnysource(in, /*tag=*/7);
    while (!work->isCompleted()) sched_yield();
    EXPECT_TRUE(work->isSuccess() && equals(in[0], of(50'000, work->sourceRank())));
    sources.insert(work->sourceRank());
  }
  EXPECT_EQ(int(sources.size()), rank_ == 0 ? size_ - 1 : 0);
}

// A receive from any source that is posted first gets the first message, even if it is waited for last.
TEST_F(C10dApi, AnySourceAndASourceDoNotMixTheirPayloads) {
  if (rank_ == 1) {
    for (const int i : {10, 20}) {
      Tensors out = {of(50'000, i)};
      backend_.send(out, 0, /*tag=*/9);
    }
  }
  if (rank_ != 0) return;
  Tensors first = {at::empty({50'000})}, second = {at::empty({50'000})};
  const auto any = backend_.recvAnysource(first, /*tag=*/9), from_one = backend_.recv(second, 1, /*tag=*/9);
  from_one->wait(kNoTimeout);
  any->wait(kNoTimeout);
  EXPECT_TRUE(equals(first[0], of(50'000, 10)) && equals(second[0], of(50'000, 20)));
}

TEST_F(C10dApi, AReceiveHasAFutureWhenItIsCompleted) {
  Tensors in = {at::empty({300})}, out = {of(300, 1)};
  const auto work = rank_ == 0 ? backend_.recv(in, 1, /*tag=*/5) : nullptr;
  if (rank_ == 0) {
    EXPECT_THROW(work->getFuture(), c10::ValueError);
  }
  backend_.barrier({});
  if (rank_ == 1) backend_.send(out, 0, /*tag=*/5);
  if (rank_ != 0) return;
  work->wait(kNoTimeout);
  const auto future = work->getFuture();
  ASSERT_TRUE(future->completed() && !future->hasError());
  EXPECT_TRUE(equals(future->value().toTensorVector().at(0), of(300, 1)));
}

TEST_F(C10dApi, ADestroyedReceiveIsCanceled) {
  Tensors dropped = {at::empty({300})}, received = {at::empty({300})};
  if (rank_ == 0) backend_.recv(dropped, 1, /*tag=*/4);
  backend_.barrier({});
  if (rank_ == 1) {
    Tensors out = {of(300, 1)};
    backend_.send(out, 0, /*tag=*/4);
  }
  if (rank_ == 0) backend_.recv(received, 1, /*tag=*/4)->wait(kNoTimeout);
  EXPECT_TRUE(rank_ != 0 || equals(received[0], of(300, 1)));
}

TEST_F(C10dApi, ArgumentsAreChecked) {
  Tensors x = {of(4, rank_)}, two = {x[0], x[0]};
  c10d::AllreduceOptions unknown;
  unknown.reduceOp = c10d::ReduceOp::UNUSED;
  EXPECT_THROW(backend_.allreduce(two, {}), c10::ValueError);
  EXPECT_THROW(backend_.allreduce(x, unknown), c10::ValueError);
  EXPECT_THROW(backend_.send(x, size_, 0), c10::ValueError);
  EXPECT_THROW(backend_.recv(x, 0, -1), c10::ValueError);
}

// A size that is wrong on one rank alone would otherwise let the others wait.
TEST(C10dApiFailures, AWrongSizeAbortsTheGroup) {
  const std::function<void(C10dBackend&, at::Tensor&)> calls[] = {
      [](C10dBackend& backend, at::Tensor& x) { backend._allgather_base(x, x, {}); },
      [](C10dBackend& backend, at::Tensor& x) { backend._reduce_scatter_base(x, x, {}); }};
  for (const auto& call : calls) {
    const auto backend = flat_backend();
    at::Tensor x = of(4, backend->getRank());
    EXPECT_THROW(call(*backend, x), c10::ValueError);
    EXPECT_THROW(backend->barrier({})->wait(kNoTimeout), base::CommError);
  }
}

}  // namespace
}  // namespace shardwise::comm::mpi
