// Ranks that exit, stop, leave or abort: the error on the other ranks, and how soon they get it.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "shardwise/base/clock.h"
#include "shardwise/base/error.h"
#include "shardwise/comm/shm/channel.h"
#include "tests/comm/collective_calls.h"
#include "tests/comm/failures.h"
#include "tests/comm/process_resources.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/comm/workers.h"
#include "tests/support/deadline.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::failure_test {
namespace {

using namespace shardwise::testing;

/// Repeats the collective until it fails.
base::CommError::Where until_error(const Group& group, const std::string& collective, std::string& text) {
  while (true) {
    try {
      run_collective(group, collective);
    } catch (const base::CommError& error) {
      text = base::one_line(error);
      return error.where();
    }
  }
}

std::string exited(const Worker& worker, int rank) {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(worker.pid()) + ") exited";
}

class KilledRank : public ::testing::TestWithParam<const char*> {};

TEST_P(KilledRank, IsNamedByEverySurvivorWithinASecond) {
  const std::string job = new_job();
  Worker first(GetParam(), job, 1, 3, 20'000), second(GetParam(), job, 2, 3, 20'000);
  const Group group = connect_to_workers(job, 0, 3, 20'000);
  for (int i = 0; i < 20; ++i) run_collective(group, GetParam());
  first.signal(SIGKILL);
  const base::Stopwatch since_killed;
  std::string text;
  const base::CommError::Where where = until_error(group, GetParam(), text);
  expect_within(since_killed.seconds(), 1);
  EXPECT_EQ(where.peer, 1);
  EXPECT_EQ(where.op, GetParam() == std::string("all_reduce_async") ? "all_reduce" : GetParam());
  EXPECT_EQ(where.rank, 0);
  EXPECT_GT(where.sequence, 20u);
  EXPECT_NE(text.find(exited(first, 1)), std::string::npos) << text;
  EXPECT_NE(second.output().find(exited(first, 1)), std::string::npos);
}

/// Connects to two workers, kills one, and runs the collective until it fails.
void survive(const std::string& collective) {
  const std::string job = new_job();
  Worker first(collective, job, 1, 3, 20'000), second(collective, job, 2, 3, 20'000);
  const Group group = connect_to_workers(job, 0, 3, 20'000);
  run_collective(group, collective);
  const int files = descriptors();
  first.signal(SIGKILL);
  std::string text;
  until_error(group, collective, text);
  EXPECT_LE(descriptors(), files);
}

TEST_P(KilledRank, LeavesNothingWithASurvivor) {
  const int regions = mapped_regions();
  survive(GetParam());
  const int files = descriptors();  // by now the process has opened its permanent files
  for (int i = 0; i < 3; ++i) survive(GetParam());
  EXPECT_EQ(descriptors(), files);
  EXPECT_EQ(mapped_regions(), regions);
}

INSTANTIATE_TEST_SUITE_P(While, KilledRank,
                         ::testing::Values("all_reduce", "all_reduce_async", "share_shard"));

TEST(StoppedRank, IsATimeoutAfterTheGroupsTimeout) {
  const std::string job = new_job();
  Worker worker("all_reduce", job, 1, 2, 20'000);
  const Group group = connect_to_workers(job, 0, 2, /*timeout_ms=*/500);
  run_collective(group, "all_reduce");
  worker.signal(SIGSTOP);
  std::string text;
  const base::CommError::Where where = until_error(group, "all_reduce", text);
  EXPECT_EQ(where.peer, 1);
  EXPECT_GE(where.elapsed_s, 0.5);
  expect_within(where.elapsed_s, 1.5);
  EXPECT_EQ(where.limit_s, 0.5);
  EXPECT_NE(text.find("timed out waiting for rank 1 (pid " + std::to_string(worker.pid()) + ")"),
            std::string::npos)
      << text;
}

/// Posts a broadcast of rank 0 and does not read: a rank that is interrupted, or late.
void only_post_broadcast(const TestGroup& at, const at::Tensor& x) {
  at.backend->transport()->channel().post(descriptor_of(Op::broadcast, x, x.numel()));
}

// Rank 0 waits until both peers have read, rank 1 waits for rank 0, and rank 2 has not read.
TEST(LateRank, IsNamedByAllWaitingRanks) {
  on_threads(3, [](int rank, const std::string& job) {
    const shm::ConnectOptions group_options = options(job, rank, 3, rank == 1 ? 300 : 20'000);
    const TestGroup at = connect_test_group(group_options);
    at.backend->barrier({})->wait();
    std::vector<at::Tensor> x = {at.group.empty({5000}, at::kFloat)};
    if (rank == 2) {
      only_post_broadcast(at, x[0]);
      return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    }
    try {
      at.backend->broadcast(x, {.rootRank = 0})->wait();
      at.backend->barrier({})->wait();
      ADD_FAILURE() << "no error on rank " << rank;
    } catch (const base::CommError& error) {
      EXPECT_EQ(error.where().peer, 2);
      EXPECT_NE(base::one_line(error).find("timed out waiting for rank 2 (pid "), std::string::npos)
          << base::one_line(error);
    }
  });
}

TEST(LateRank, OfTwoEquallyLateOnesTheOneWaitedForIsNamed) {
  std::barrier all_ready(3), has_failed(3);
  on_threads(3, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 3));
    group.barrier();
    all_ready.arrive_and_wait();
    if (rank == 0) {
      group.backend()->set_timeout(std::chrono::milliseconds(200));
      std::string line;
      EXPECT_EQ(failure_of([&] { group.barrier(); }, line).peer, 1);
    }
    has_failed.arrive_and_wait();
  });
}

// A late rank may still write its part of the sum there.
TEST(FailedCall, ItsFreedMemoryIsNotUsedAgain) {
  constexpr int64_t kNumel = 100'000;
  std::barrier all_done(2);
  on_threads(2, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 2));
    group.barrier();
    if (rank == 0) {
      group.backend()->set_timeout(std::chrono::milliseconds(200));
      at::Tensor x = group.empty({kNumel}, at::kFloat).zero_();
      const auto* const begin = static_cast<const float*>(x.const_data_ptr());
      std::string line;
      EXPECT_EQ(failure_of([&] { group.all_reduce_(x); }, line).peer, 1);
      x.reset();
      std::vector<at::Tensor> later;
      for (int i = 0; i < 5; ++i) {
        later.push_back(group.empty({kNumel / (i + 1)}, at::kFloat));
        const auto* const other = static_cast<const float*>(later.back().const_data_ptr());
        EXPECT_TRUE(other + later.back().numel() <= begin || begin + kNumel <= other) << i;
      }
    }
    all_done.arrive_and_wait();
  });
}

// When a rank's collective is interrupted, its peers fail at its next call, before the timeout.
void leave_unfinished_before(const std::function<void(const TestGroup& at)>& next_call) {
  on_threads(3, [&](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, 3));
    std::vector<at::Tensor> x = {at.group.empty({5000}, at::kFloat)};
    if (rank == 2) only_post_broadcast(at, x[0]);
    std::string line;
    const auto where = failure_of(
        [&] {
          if (rank == 2) return next_call(at);
          at.backend->broadcast(x, {.rootRank = 0})->wait();
          at.backend->barrier({})->wait();
        },
        line);
    EXPECT_EQ(where.peer, 2);
    expect_within(where.elapsed_s, 5);
    EXPECT_NE(line.find("rank 2 (pid "), std::string::npos) << line;
    EXPECT_NE(line.find(") left a collective unfinished after an earlier error"), std::string::npos) << line;
  });
}

TEST(UnfinishedCollective, IsAnErrorOfTheRanksNextCall) {
  leave_unfinished_before([](const TestGroup& at) { at.backend->barrier({})->wait(); });
  leave_unfinished_before([](const TestGroup& at) {
    std::vector<at::Tensor> x = {at::full({1}, 1.f)};
    at.backend->recv(x, 0, 0)->wait();
  });
}

// A peer may still be reading the previous collective's payload in the next slot.
TEST(UnfinishedCollective, LeavesTheNextSlotUntouched) {
  on_threads(2, [](int rank, const std::string& job) {
    const shm::ConnectOptions group_options = options(job, rank, 2);
    shm::Channel channel(shm::rendezvous(group_options), rank, group_options.timeout);
    channel.post({});
    if (rank == 0) return;
    std::string line;
    EXPECT_EQ(failure_of([&] { channel.next_payload(Op::barrier); }, line).peer, 1);
    EXPECT_NE(line.find(") left a collective unfinished after an earlier error"), std::string::npos) << line;
  });
}

// A process may be stopped between its last check of the peers and its check of the clock.
TEST(LateRank, IsNotReportedWhenAllHaveArrived) {
  on_threads(1, [](int rank, const std::string& job) {
    const shm::ConnectOptions group_options = options(job, rank, 1, 50);
    shm::Channel channel(shm::rendezvous(group_options), rank, group_options.timeout);
    shm::WaitContext context = channel.wait_context(0);
    context.start -= std::chrono::seconds(1);
    bool has_arrived = true;
    const auto ready = [&] { return has_arrived; };
    const auto always = [](int, shm::PeerState) { return true; };
    const shm::Wait wait{context, channel.control(0).departed, ready, always};
    EXPECT_NO_THROW(channel.check_failures(wait));
    has_arrived = false;
    EXPECT_THROW(channel.check_failures(wait), base::CommError);
  });
}

// Else it could overwrite memory that a third rank, unaware of the abort, still reads.
TEST(RankThatSeesAnAbort, SetsItsOwnAbortWord) {
  on_threads(2, [](int rank, const std::string& job) {
    const shm::ConnectOptions group_options = options(job, rank, 2);
    shm::Channel channel(shm::rendezvous(group_options), rank, group_options.timeout);
    if (rank == 0) return channel.abort("on purpose");
    std::string line;
    failure_of([&] { channel.wait_for_arrivals(channel.post({})); }, line);
    EXPECT_NE(line.find("rank 0 aborted: on purpose"), std::string::npos) << line;
    EXPECT_EQ(channel.control(1).abort.state.load(), shm::Abort::State::set);
    EXPECT_STREQ(channel.control(1).abort.reason, channel.control(0).abort.reason);
  });
}

// Another thread of this rank aborts: the call waits for its reason, and posts nothing into a broken group.
TEST(AbortThatIsBeingWritten, EndsTheNextCallWithItsReason) {
  on_threads(2, [](int rank, const std::string& job) {
    const shm::ConnectOptions group_options = options(job, rank, 2);
    shm::Channel channel(shm::rendezvous(group_options), rank, group_options.timeout);
    if (rank == 1) return;
    shm::Abort& abort = channel.control(0).abort;
    abort.state = shm::Abort::State::writing;
    std::thread writer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      std::string("on purpose").copy(abort.reason, sizeof(abort.reason) - 1);
      abort.state = shm::Abort::State::set;
    });
    std::string line;
    failure_of([&] { channel.post({}); }, line);
    EXPECT_NE(line.find("on purpose"), std::string::npos) << line;
    EXPECT_EQ(channel.control(0).slots[1].flag.sequence.load(), 0u);
    writer.join();
  });
}

TEST(TensorOnAnotherDevice, IsRejectedInEverySize) {
  on_ranks(2, [](const Group& group) {
    for (const int64_t numel : {12, 5000, 500'000}) {
      at::Tensor x = at::empty({numel}, at::TensorOptions().device(at::kMeta));
      EXPECT_THROW(group.all_reduce_(x), c10::ValueError) << numel;
    }
  });
}

// In nanoseconds, such a limit overflows.
TEST(LateRank, IsAwaitedByATimeoutOfCenturies) {
  const std::chrono::milliseconds centuries = std::chrono::years(1000);
  on_threads(2, [&](int rank, const std::string& job) {
    comm::shm::ConnectOptions group_options = options(job, rank, 2);
    group_options.timeout = centuries;
    const TestGroup at = connect_test_group(group_options);
    const auto wait_for_rank_1 = [&](const std::function<void()>& call) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_NO_THROW(call());
    };
    Tensors x = {at::full({1}, 1.f)};
    c10d::BarrierOptions limited;
    limited.timeout = centuries;
    wait_for_rank_1([&] { at.backend->barrier({})->wait(); });
    wait_for_rank_1([&] { at.backend->barrier(limited)->wait(); });
    wait_for_rank_1([&] {
      if (rank == 0) {
        at.backend->recv(x, 1, 0)->wait(centuries);
      } else {
        at.backend->send(x, 0, 0)->wait(kNoTimeout);
      }
    });
    wait_for_rank_1([&] { at.backend->monitoredBarrier(limited, true); });
    at.backend->setTimeout(2 * centuries);
    wait_for_rank_1([&] { at.backend->barrier({})->wait(); });
  });
}

TEST(LeavingRank, IsAnErrorOnlyForRanksThatStillNeedIt) {
  for (const char* scenario : {"leave", "exit"}) {
    const std::string job = new_job();
    Worker worker(scenario, job, 1, 2, 20'000);
    const Group group = connect_to_workers(job, 0, 2, 20'000);
    group.barrier();
    std::string text;
    EXPECT_EQ(until_error(group, "barrier", text).sequence, 2u);
    EXPECT_NE(text.find(std::string(") ") + (scenario[0] == 'l' ? "left the group" : "exited")),
              std::string::npos)
        << text;
  }
}

// Rank 0 has shared a shard and leaves; rank 1 shares its own later.
TEST(LeavingRank, DoesNotWaitInItsNextCallForALatePeer) {
  std::atomic<bool> is_refused = false;
  on_threads(2, [&](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, 2, /*timeout_ms=*/2000));
    while (rank == 1 && !is_refused) std::this_thread::yield();
    const at::Tensor shard = at::full({1}, float(rank));
    const auto shards = at.group.share_shard(shard, base::Split::even("x", 2, 2));
    if (rank == 0) {
      at.backend->shutdown();
      EXPECT_THROW(at.group.all_reduce(shard), c10::ValueError);
      is_refused = true;
    } else {
      EXPECT_EQ(shards->get(0).item<float>(), 0);
    }
  });
}

TEST(Abort, FailsAWaitingPeerAndEveryLaterCall) {
  on_threads(3, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 3));
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      group.abort("the loss is not finite");
    }
    const base::Stopwatch since_start;
    for (int i = 0; i < 3; ++i) {
      std::string text;
      EXPECT_EQ(until_error(group, "all_reduce", text).peer, 0);
      EXPECT_NE(text.find("rank 0 aborted: the loss is not finite"), std::string::npos) << text;
    }
    expect_within(since_start.seconds(), 1);
  });
}

}  // namespace
}  // namespace shardwise::comm::failure_test
