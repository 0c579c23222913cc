// Ranks that run different programs, shut down early or give up: what all of them are told. These tests break
// groups, so the job cannot end in good order; mpi_test looks at the ranks' last lines instead.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/mesh.h"
#include "shardwise/comm/mpi/transport.h"
#include "tests/comm/values.h"
#include "tests/mpi/ranks/ranks.h"

namespace shardwise::comm {
namespace {

using namespace shardwise::testing;
using base::Split;
using mpi::Layout;
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

struct Named {
  Call call;
  std::string words;
};

std::vector<Named> all_calls() {
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
    group.barrier();  // a rank that need not wait for rank 1 finds out here
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().rank, group.rank());
    return base::one_line(error);
  }
  return "no error";
}

class Disorder : public ::testing::TestWithParam<Layout> {
 protected:
  static Group new_group(int timeout_s = 20) {
    return mpi::connect(new_options(GetParam(), std::chrono::seconds(timeout_s)));
  }
};

// Rank 1 runs one of them, the others another.
TEST_P(Disorder, EveryMismatchIsAnErrorNamingBothSidesOnAllRanks) {
  const std::vector<Named> calls = all_calls();
  for (size_t ours = 0; ours < calls.size(); ++ours) {
    for (const size_t ahead : {1, 2, 5}) {
      const size_t theirs = (ours + ahead) % calls.size();
      const Group group = new_group();
      const std::string error = error_of(group, calls[group.rank() == 1 ? theirs : ours].call);
      EXPECT_NE(error.find("runs " + calls[ours].words), std::string::npos) << error;
      EXPECT_NE(error.find("rank 1 runs " + calls[theirs].words), std::string::npos) << error;
      EXPECT_EQ(error.find('\n'), std::string::npos);
    }
  }
}

TEST_P(Disorder, ReasonsOfAnAbortReachEveryRank) {
  const Group group = new_group();
  group.barrier();
  if (group.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    group.abort("the loss is not finite");
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) {
    const std::string error = error_of(group, all_reduce(5000));
    EXPECT_NE(error.find("rank 1 aborted: the loss is not finite"), std::string::npos) << error;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

// Its notice is there when the others begin.
TEST_P(Disorder, AnAbortBeforeACollectiveIsSeenInItsWait) {
  const Group group = new_group();
  group.barrier();
  if (group.rank() == 1) {
    group.abort("the loss is not finite");
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string error = error_of(group, all_reduce(5000));
  EXPECT_NE(error.find("rank 1 aborted: the loss is not finite"), std::string::npos) << error;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_P(Disorder, ARankThatDropsItsGroupIsNamedAtOnce) {
  Group group = new_group();
  group.barrier();
  if (group.rank() == 1) {
    group = Group();
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const std::string error = error_of(group, all_reduce(5000));
  EXPECT_NE(error.find("rank 1 "), std::string::npos) << error;
  EXPECT_NE(error.find(" left"), std::string::npos) << error;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

// A rank that is somewhere else, but lives.
TEST_P(Disorder, ALateRankIsNamedAtTheTimeout) {
  const Group group = new_group(/*timeout_s=*/1);
  group.barrier();
  if (group.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const std::string error = error_of(group, all_reduce(5000));
    EXPECT_NE(error.find("did not come"), std::string::npos) << error;
    return;
  }
  try {
    group.all_reduce(some(5000));
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().op, "all_reduce");
    EXPECT_EQ(error.where().peer, 1);
    EXPECT_EQ(error.where().sequence, 2u);
    EXPECT_EQ(error.where().limit_s, 1);
    EXPECT_LT(error.where().elapsed_s, 2);
    EXPECT_NE(base::one_line(error).find("did not come"), std::string::npos) << base::one_line(error);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Disorder, ::testing::Values(Layout::flat, Layout::by_host),
                         [](const auto& layout) {
                           return layout.param == Layout::flat ? "flat" : "by_host";
                         });

std::pair<mpi::Options, c10::intrusive_ptr<Backend>> new_backend() {
  const mpi::Options options = new_options(Layout::flat);
  auto backend = c10::make_intrusive<Backend>(std::make_shared<mpi::Transport>(options, meet(options)));
  return {options, backend};
}

TEST(DisorderlyBackend, PiecesThatTwoRanksDisagreeAbout) {
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
    EXPECT_NE(text.find("rank 1 sends float32 [5], rank 0 takes float32 [4]"), std::string::npos) << text;
  }
}

TEST(DisorderlyBackend, AMessageOfAnotherSizeIsAnErrorNamingBothSides) {
  const auto backend = new_backend().second;
  std::vector<at::Tensor> out = {some(5)}, in = {at::empty({4})};
  if (backend->getRank() == 1) backend->send(out, 0, 2);
  try {
    if (backend->getRank() == 0) backend->recv(in, 1, 2)->wait(kNoTimeout);
    backend->barrier({})->wait();
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    const std::string text = base::one_line(error);
    EXPECT_NE(text.find("rank 1 sends float32 [5], rank 0 takes float32 [4]"), std::string::npos) << text;
  }
}

// Rank 0 sends to a rank that there is not, as MPI sees it; the others wait for rank 0.
TEST(DisorderlyBackend, AMessageThatMpiRefusesBreaksTheGroup) {
  const mpi::Options options = new_options(Layout::flat);
  mpi::Transport transport(options, meet(options));
  transport.barrier();
  at::Tensor x = some(4);
  try {
    if (transport.rank() == 0) transport.send(x, /*to=*/transport.size(), /*tag=*/0);
    transport.receive(x, /*from=*/0, /*tag=*/0)->wait(kNoTimeout);
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().op, transport.rank() == 0 ? "send" : "recv");
    EXPECT_LT(error.where().elapsed_s, 2);
    EXPECT_NE(base::one_line(error).find("MPI: MPI_ERR_RANK"), std::string::npos) << base::one_line(error);
  }
}

/// Rank 0 takes in messages of `root_bytes` at most what rank 1 sends in such of `sender_bytes`: whom each
/// rank blames.
void check_other_limits(int64_t root_bytes, int64_t sender_bytes) {
  mpi::Options options = new_options(Layout::flat);
  if (options.rank < 2) options.message_bytes = options.rank == 0 ? root_bytes : sender_bytes;
  const Group group(c10::make_intrusive<Backend>(std::make_shared<mpi::Transport>(options, meet(options))));
  try {
    group.gather(some(1000), /*root=*/0);
    group.barrier();
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().peer, 1) << base::one_line(error);
    EXPECT_NE(base::one_line(error).find("MPI: MPI_ERR_"), std::string::npos) << base::one_line(error);
  }
}

// All of rank 1's message fails with its first part: what is not done after it is another rank's, or nothing.
TEST(DisorderlyBackend, ASenderWhoseMessagesAreShorterIsNamed) {
  check_other_limits(/*root_bytes=*/8000, /*sender_bytes=*/2000);
}
TEST(DisorderlyBackend, ASenderWhoseMessagesAreLongerIsNamed) {
  check_other_limits(/*root_bytes=*/2000, /*sender_bytes=*/8000);
}

// What goes wrong while MPI's own thread looks after a message: here a receive that is too short.
TEST(DisorderlyBackend, WhatFailsUnwaitedIsTold) {
  const mpi::Meeting meeting = meet(new_options(Layout::flat));
  std::vector<char> bytes(100);
  const auto transfers = std::make_shared<mpi::Transfers>(*meeting.process, mpi::kWhole);
  std::promise<int> told;
  if (meeting.rank == 0) {
    transfers->receive(bytes.data(), 4, {meeting.data, 1});
    meeting.process->drive(transfers, [&](const mpi::Transfers& failed) { told.set_value(failed.error()); });
    std::future<int> error = told.get_future();
    ASSERT_EQ(error.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_NE(error.get(), MPI_SUCCESS);
  } else if (meeting.rank == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    transfers->send(bytes.data(), 100, {meeting.data, 0});
    meeting.process->drive(transfers, [](const mpi::Transfers&) { ADD_FAILURE() << "the sender is done"; });
  }
}

// The envelope of a message comes late, what it holds never.
TEST(DisorderlyBackend, AMessageIsWaitedForOnce) {
  constexpr int64_t kNumel = 5000;
  const mpi::Options options = new_options(Layout::flat);
  const mpi::Meeting meeting = meet(options);
  mpi::Transport transport(options, meeting);
  transport.barrier();
  if (transport.rank() == 0) {
    at::Tensor x = some(kNumel);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(transport.receive(x, /*from=*/1, /*tag=*/0)->wait(std::chrono::seconds(2)), base::CommError);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  } else if (transport.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1400));
    const auto envelope = std::make_shared<std::array<int64_t, 64>>();
    *envelope = {int64_t(at::kFloat), kNumel, /*payload_tag=*/1};
    const auto transfers = std::make_shared<mpi::Transfers>(*meeting.process, mpi::kWhole);
    transfers->keep(envelope);
    transfers->send(envelope->data(), sizeof *envelope, {meeting.control, /*peer=*/0, /*tag=*/1});
    meeting.process->drive(transfers, [](const mpi::Transfers&) { ADD_FAILURE() << "MPI refuses it"; });
  }
}

TEST(DisorderlyBackend, AfterShutdownThereIsNoCollective) {
  const auto backend = new_backend().second;
  backend->barrier({});
  if (backend->getRank() == 1) backend->shutdown();
  try {
    backend->barrier({})->wait();
    ADD_FAILURE() << "no error";
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(backend->getRank(), 1);
    EXPECT_EQ(base::one_line(error),
              "barrier: the group takes calls until it is shut down; got one afterward");
    std::vector<at::Tensor> x = {some(4)};
    EXPECT_THROW(backend->send(x, /*to=*/0, /*tag=*/0), c10::ValueError);
    EXPECT_THROW(backend->recv(x, /*from=*/0, /*tag=*/0), c10::ValueError);
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().peer, 1);
    EXPECT_NE(base::one_line(error).find("rank 1 left"), std::string::npos) << base::one_line(error);
  }
}

// What only the root can see.
TEST(DisorderlyBackend, WhatOnlyTheRootSeesWrongFailsOnAllRanks) {
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
    EXPECT_NE(base::one_line(error).find("rank 1 aborted: scatter: takes one CPU tensor per rank"),
              std::string::npos)
        << base::one_line(error);
  }
}

// Rank 1 leaves rank 2 out of the group, which waits for both.
TEST(Meeting, GroupsOfOneNameAndOtherRanksDoNotMix) {
  mpi::connect(new_options(Layout::flat));  // MPI is started
  mpi::Options options = new_options(Layout::flat, std::chrono::seconds(2));
  ASSERT_EQ(options.world_size, 3);
  if (options.rank == 1) options.ranks = {0, 1};
  try {
    mpi::connect(options);
    ADD_FAILURE() << "joined";
  } catch (const base::CommError& error) {
    const std::string text = base::one_line(error), own = std::to_string(options.rank);
    const std::string other = options.rank == 0 ? "1" : "0";
    EXPECT_EQ(error.where().op, "connect");
    EXPECT_NE(
        text.find(options.rank == 2 ? "rank 1 did not come to group " + options.name
                                    : "rank " + own + " of the job makes group " + options.name + ", rank " +
                                          other + " group " + options.name + " of other ranks"),
        std::string::npos)
        << text;
  }
}

TEST(Meeting, ARankThatDoesNotComeIsNamed) {
  mpi::Options options = new_options(Layout::flat, std::chrono::milliseconds(500));
  mpi::connect(new_options(Layout::flat));  // MPI is started
  if (options.rank == 1) return;
  try {
    mpi::connect(options);
    ADD_FAILURE() << "joined";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().op, "connect");
    EXPECT_EQ(error.where().peer, 1);
    EXPECT_NE(base::one_line(error).find("rank 1 did not come to group " + options.name), std::string::npos);
  }
}

// The second in time leaves the third no more than is left of the timeout.
TEST(LateRanks, TheTimeoutIsThatOfACollectiveNotOfEachPeer) {
  const Group group = mpi::connect(new_options(Layout::flat, std::chrono::seconds(2)));
  ASSERT_EQ(group.size(), 3);
  group.barrier();
  std::this_thread::sleep_for(std::chrono::milliseconds(1300) * group.rank());
  try {
    group.barrier();
    group.barrier();  // rank 2, for whom all announcements were there, finds out here
    ADD_FAILURE() << "no error";
  } catch (const base::CommError& error) {
    EXPECT_EQ(error.where().peer, 2) << base::one_line(error);
    EXPECT_NE(base::one_line(error).find("rank 2 did not come"), std::string::npos);
    EXPECT_GE(error.where().elapsed_s, group.rank() == 0 ? 2 : 0);
  }
}

}  // namespace
}  // namespace shardwise::comm
