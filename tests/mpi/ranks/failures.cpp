// Errors of ranks that run different programs, shut down early or abort. These tests break groups, so the job
// cannot exit cleanly; mpi_test checks the ranks' last lines instead.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <thread>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/base/hash.h"
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/mesh.h"
#include "shardwise/comm/mpi/transport.h"
#include "shardwise/comm/rendezvous.h"
#include "tests/comm/values.h"
#include "tests/mpi/ranks/ranks.h"
#include "tests/support/deadline.h"

namespace shardwise::comm {
namespace {

using namespace shardwise::testing;
using base::Split;
using mpi::Topology;
using Call = std::function<void(const Group&)>;

at::Tensor some(int64_t numel, at::ScalarType dtype = at::kFloat) {
  return value({numel}, 0, dtype);
}
Call all_reduce(int64_t numel, at::ScalarType dtype = at::kFloat, Reduce reduce = Reduce::sum) {
  return [=](const Group& group) { group.all_reduce(some(numel, dtype), reduce); };
}
Call all_gather(int64_t numel, int64_t granule = 1) {
  return [=](const Group& group) {
    const Split split = Split::even("x", numel, group.size(), granule);
    group.all_gather(some(split.range(group.rank()).size()), split);
  };
}
Call reduce_scatter(int64_t numel) {
  return
      [=](const Group& group) { group.reduce_scatter(some(numel), Split::even("x", numel, group.size())); };
}
Call broadcast(int64_t numel, int root) {
  return [=](const Group& group) {
    at::Tensor x = some(numel);
    group.broadcast_(x, root);
  };
}
Call barrier() {
  return [](const Group& group) { group.barrier(); };
}

struct NamedCall {
  Call call;
  std::string description;
};

std::vector<NamedCall> all_calls() {
  return {{broadcast(12, 0), "broadcast float32 [12] root 0"},
          {broadcast(12, 1), "broadcast float32 [12] root 1"},
          {broadcast(24, 0), "broadcast float32 [24] root 0"},
          {all_gather(12), "all_gather float32 [12] split"},
          {all_gather(24), "all_gather float32 [24] split"},
          {all_gather(24, 5), "all_gather float32 [24] split"},
          {all_reduce(12), "all_reduce sum float32 [12]"},
          {all_reduce(5000), "all_reduce sum float32 [5000]"},
          {all_reduce(12, at::kBFloat16), "all_reduce sum bfloat16 [12]"},
          {all_reduce(5000, at::kFloat, Reduce::max), "all_reduce max float32 [5000]"},
          {reduce_scatter(12), "reduce_scatter sum float32 [12] split"},
          {[](const Group& group) { group.all_to_all(some(24)); }, "all_to_all float32"},
          {[](const Group& group) { group.gather(some(4), 0); }, "gather float32 root 0"},
          {barrier(), "barrier"}};
}

std::string error_of(const Group& group, const Call& call) {
  try {
    call(group);
    group.barrier();  // a rank that does not wait for rank 1 fails here
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().rank, group.rank());
    return base::one_line(error);
  }
  return "no error";
}

class Failures : public ::testing::TestWithParam<Topology> {
 protected:
  static Group new_group() { return mpi::connect(new_options(GetParam())); }
};

// Rank 1 runs one call, the other ranks another.
TEST_P(Failures, EveryMismatchIsAnErrorNamingBothSidesOnAllRanks) {
  const std::vector<NamedCall> calls = all_calls();
  for (size_t ours = 0; ours < calls.size(); ++ours) {
    for (const size_t offset : {1, 2, 5}) {
      const size_t theirs = (ours + offset) % calls.size();
      const Group group = new_group();
      const std::string error = error_of(group, calls[group.rank() == 1 ? theirs : ours].call);
      EXPECT_NE(error.find("runs " + calls[ours].description), std::string::npos) << error;
      EXPECT_NE(error.find("rank 1 runs " + calls[theirs].description), std::string::npos) << error;
      EXPECT_EQ(error.find('\n'), std::string::npos);
    }
  }
}

TEST_P(Failures, AbortReasonsReachEveryRank) {
  const Group group = new_group();
  group.barrier();
  if (group.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    group.abort("the loss is not finite");
  }
  const base::Stopwatch since_start;
  for (int i = 0; i < 3; ++i) {
    const std::string error = error_of(group, all_reduce(5000));
    EXPECT_NE(error.find("rank 1 aborted: the loss is not finite"), std::string::npos) << error;
  }
  expect_within(since_start.seconds(), 2);
}

// The control message has arrived before the other ranks begin.
TEST_P(Failures, AnAbortBeforeACollectiveIsDetectedInItsWait) {
  const Group group = new_group();
  group.barrier();
  if (group.rank() == 1) {
    group.abort("the loss is not finite");
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const base::Stopwatch since_start;
  const std::string error = error_of(group, all_reduce(5000));
  EXPECT_NE(error.find("rank 1 aborted: the loss is not finite"), std::string::npos) << error;
  expect_within(since_start.seconds(), 2);
}

TEST_P(Failures, ARankThatDestroysItsGroupIsNamedAtOnce) {
  Group group = new_group();
  group.barrier();
  if (group.rank() == 1) {
    group = Group();
    return;
  }
  const base::Stopwatch since_start;
  const std::string error = error_of(group, all_reduce(5000));
  EXPECT_NE(error.find("rank 1 "), std::string::npos) << error;
  EXPECT_NE(error.find(" left"), std::string::npos) << error;
  expect_within(since_start.seconds(), 2);
}

INSTANTIATE_TEST_SUITE_P(Topologies, Failures, ::testing::Values(Topology::flat, Topology::hierarchical),
                         [](const auto& topology) {
                           return topology.param == Topology::flat ? "flat" : "hierarchical";
                         });

std::pair<mpi::ConnectOptions, c10::intrusive_ptr<C10dBackend>> new_backend() {
  const mpi::ConnectOptions options = new_options(Topology::flat);
  auto backend =
      c10::make_intrusive<C10dBackend>(std::make_shared<mpi::Transport>(options, rendezvous(options)));
  return {options, backend};
}

TEST(BackendFailures, MismatchedPieceSizesAreAnErrorNamingBothSides) {
  const auto backend = new_backend().second;
  std::vector<at::Tensor> inputs, outputs;
  for (int peer = 0; peer < backend->getSize(); ++peer) {
    inputs.push_back(some(backend->getRank() == 1 && peer == 0 ? 5 : 4));
    outputs.push_back(at::empty({4}));
  }
  try {
    backend->alltoall(outputs, inputs, {})->wait();
    backend->barrier({})->wait();
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    const std::string text = base::one_line(error);
    EXPECT_NE(text.find("rank 1 sends float32 [5], rank 0 expects float32 [4]"), std::string::npos) << text;
  }
}

TEST(BackendFailures, AMismatchedMessageSizeIsAnErrorNamingBothSides) {
  const auto backend = new_backend().second;
  std::vector<at::Tensor> out = {some(5)}, in = {at::empty({4})};
  if (backend->getRank() == 1) backend->send(out, 0, 2);
  try {
    if (backend->getRank() == 0) {
      const auto work = backend->recv(in, 1, 2);
      EXPECT_THROW(work->wait(kNoTimeout), base::CommError);
      EXPECT_TRUE(work->isCompleted() && !work->isSuccess() && work->getFuture()->hasError());
      work->wait(kNoTimeout);  // throws the error again
    }
    backend->barrier({})->wait();
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    const std::string text = base::one_line(error);
    EXPECT_NE(text.find("rank 1 sends float32 [5], rank 0 expects float32 [4]"), std::string::npos) << text;
  }
}

// Rank 0 sends to a rank that does not exist; the other ranks wait for rank 0.
TEST(BackendFailures, AMessageThatMpiRejectsBreaksTheGroup) {
  const mpi::ConnectOptions options = new_options(Topology::flat);
  mpi::Transport transport(options, rendezvous(options));
  transport.barrier();
  at::Tensor x = some(4);
  try {
    if (transport.rank() == 0) transport.send(x, /*to=*/transport.size(), /*tag=*/0);
    transport.receive(x, /*from=*/0, /*tag=*/0)->wait();
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().op, transport.rank() == 0 ? "send" : "recv");
    expect_within(error.where().elapsed_s, 2);
    EXPECT_NE(base::one_line(error).find("MPI: MPI_ERR_RANK"), std::string::npos) << base::one_line(error);
  }
}

/// Rank 0 receives in messages of at most `root_bytes` what rank 1 sends in messages of `sender_bytes`;
/// checks the peer that each rank reports.
void check_message_limits(int64_t root_bytes, int64_t sender_bytes) {
  mpi::ConnectOptions options = new_options(Topology::flat);
  if (options.rank < 2) options.message_bytes = options.rank == 0 ? root_bytes : sender_bytes;
  const Group group(std::make_shared<mpi::Transport>(options, rendezvous(options)));
  try {
    group.gather(some(1000), /*root=*/0);
    group.barrier();
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().peer, 1) << base::one_line(error);
    EXPECT_NE(base::one_line(error).find("MPI: MPI_ERR_"), std::string::npos) << base::one_line(error);
  }
}

// The whole message of rank 1 fails with its first part, so the error names rank 1 and not the next
// incomplete part.
TEST(BackendFailures, ASenderWhoseMessagesAreShorterIsNamed) {
  check_message_limits(/*root_bytes=*/8000, /*sender_bytes=*/2000);
}
TEST(BackendFailures, ASenderWhoseMessagesAreLongerIsNamed) {
  check_message_limits(/*root_bytes=*/2000, /*sender_bytes=*/8000);
}

// A background transfer on MPI's thread fails because the receive buffer is too short.
TEST(BackendFailures, FailuresOfBackgroundTransfersAreReported) {
  const mpi::Membership membership = rendezvous(new_options(Topology::flat));
  std::vector<char> bytes(100);
  const auto transfers = std::make_shared<mpi::Transfers>(*membership.process, mpi::kUnsplit);
  std::promise<int> reported;
  if (membership.rank == 0) {
    transfers->receive(bytes.data(), 4, {membership.data, 1});
    membership.process->complete_in_background(
        transfers, [&](const mpi::Transfers& failed) { reported.set_value(failed.error()); });
    std::future<int> error = reported.get_future();
    ASSERT_EQ(error.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_NE(error.get(), MPI_SUCCESS);
  } else if (membership.rank == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    transfers->send(bytes.data(), 100, {membership.data, 0});
    membership.process->complete_in_background(
        transfers, [](const mpi::Transfers&) { ADD_FAILURE() << "the send must succeed"; });
  }
}

// The envelope of a message arrives late, its payload never.
TEST(BackendFailures, OneTimeoutLimitsEnvelopeAndPayload) {
  constexpr int64_t kNumel = 5000;
  const mpi::ConnectOptions options = new_options(Topology::flat);
  const mpi::Membership membership = rendezvous(options);
  mpi::Transport transport(options, membership);
  transport.barrier();
  if (transport.rank() == 0) {
    at::Tensor x = some(kNumel);
    const base::Stopwatch since_start;
    EXPECT_THROW(transport.receive(x, /*from=*/1, /*tag=*/0)->wait(std::chrono::seconds(2)), base::CommError);
    expect_within(since_start.seconds(), 3);
  } else if (transport.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1400));
    const auto envelope = std::make_shared<std::array<int64_t, 64>>();
    *envelope = {int64_t(at::kFloat), kNumel, /*payload_tag=*/1};
    const auto transfers = std::make_shared<mpi::Transfers>(*membership.process, mpi::kUnsplit);
    transfers->retain(envelope);
    transfers->send(envelope->data(), sizeof *envelope, {membership.control, /*peer=*/0, /*tag=*/1});
    membership.process->complete_in_background(
        transfers, [](const mpi::Transfers&) { ADD_FAILURE() << "the send must succeed"; });
  }
}

TEST(BackendFailures, AfterShutdownCallsThrow) {
  const auto backend = new_backend().second;
  backend->barrier({});
  if (backend->getRank() == 1) backend->shutdown();
  try {
    backend->barrier({})->wait();
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(backend->getRank(), 1);
    EXPECT_EQ(base::without_code(base::one_line(error)),
              "barrier: the group must not be used after shutdown; got a call");
    std::vector<at::Tensor> x = {some(4)};
    EXPECT_THROW(backend->send(x, /*to=*/0, /*tag=*/0), c10::ValueError);
    EXPECT_THROW(backend->recv(x, /*from=*/0, /*tag=*/0), c10::ValueError);
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().peer, 1);
    EXPECT_NE(base::one_line(error).find("rank 1 left"), std::string::npos) << base::one_line(error);
  }
}

TEST(BackendFailures, AnErrorThatOnlyTheRootDetectsFailsOnAllRanks) {
  const auto backend = new_backend().second;
  std::vector<at::Tensor> own = {at::empty({4})};
  std::vector<std::vector<at::Tensor>> pieces;
  if (backend->getRank() == 1) pieces = {{some(4)}};
  c10d::ScatterOptions options;
  options.rootRank = 1;
  try {
    backend->scatter(own, pieces, options)->wait();
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(backend->getRank(), 1) << base::one_line(error);
  } catch (const base::CommError& error) {
    EXPECT_NE(base::one_line(error).find("rank 1 aborted: scatter: accepts one CPU tensor per rank"),
              std::string::npos)
        << base::one_line(error);
  }
}

// Rank 1 creates the group without rank 2, which waits for both other ranks.
TEST(Rendezvous, GroupsWithOneNameAndDifferentRanksDoNotMix) {
  mpi::connect(new_options(Topology::flat));  // starts MPI
  mpi::ConnectOptions options = new_options(Topology::flat, std::chrono::seconds(2));
  ASSERT_EQ(options.world_size, 3);
  if (options.rank == 1) options.ranks = {0, 1};
  try {
    mpi::connect(options);
    ADD_FAILURE() << "connected";
  } catch (const base::CommError& error) {
    const std::string text = base::one_line(error), self = std::to_string(options.rank);
    const std::string other = options.rank == 0 ? "1" : "0";
    EXPECT_EQ(error.where().op, "connect");
    EXPECT_NE(
        text.find(options.rank == 2 ? "timed out waiting for rank 1 to join group " + options.name
                                    : "rank " + self + " of the job creates group " + options.name +
                                          ", rank " + other + " group " + options.name + " of other ranks"),
        std::string::npos)
        << text;
  }
}

/// Sends `bytes` zeros to `peer` where the rendezvous of `options` expects a PeerInfo
/// (comm/mpi/rendezvous.cpp).
void send_to_rendezvous(const mpi::ConnectOptions& options, size_t bytes, int peer) {
  mpi::Process& process = mpi::Process::get({options.rank, options.world_size, options.timeout});
  const auto message = std::make_shared<std::vector<char>>(bytes);
  const auto transfers = std::make_shared<mpi::Transfers>(process, mpi::kUnsplit);
  const auto tags = static_cast<size_t>(std::min(process.largest_tag(), 1 << 20) - 1);
  const int tag = 1 + static_cast<int>(base::hash_of(options.name) % tags);
  transfers->retain(message);
  transfers->send(message->data(), int64_t(bytes), {process.world(), peer, tag});
  process.complete_in_background(transfers, [](const mpi::Transfers&) {});
}

// Rank 1 is of another version of the program, whose PeerInfo is larger.
TEST(Rendezvous, ALargerPeerInfoIsAnErrorNamingItsRank) {
  mpi::connect(new_options(Topology::flat));  // starts MPI
  const mpi::ConnectOptions options = new_options(Topology::flat, std::chrono::seconds(2));
  if (options.rank == 1) {
    for (const int peer : {0, 2}) send_to_rendezvous(options, 2 * sizeof(PeerInfo), peer);
    return;
  }
  try {
    mpi::connect(options);
    ADD_FAILURE() << "connected";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().op, "connect");
    EXPECT_EQ(error.where().peer, 1);
    EXPECT_NE(base::one_line(error).find("MPI: MPI_ERR_TRUNCATE"), std::string::npos)
        << base::one_line(error);
  }
}

TEST(Rendezvous, AMissingRankIsNamed) {
  mpi::ConnectOptions options = new_options(Topology::flat, std::chrono::milliseconds(500));
  mpi::connect(new_options(Topology::flat));  // starts MPI
  if (options.rank == 1) return;
  try {
    mpi::connect(options);
    ADD_FAILURE() << "connected";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().op, "connect");
    EXPECT_EQ(error.where().peer, 1);
    EXPECT_NE(base::one_line(error).find("timed out waiting for rank 1 to join group " + options.name),
              std::string::npos);
  }
}

}  // namespace
}  // namespace shardwise::comm
