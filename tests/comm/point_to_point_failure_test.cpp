// Messages that are not sent, not received, or of another size or dtype: the rank named, and how soon.
#include <signal.h>

#include <atomic>
#include <thread>

#include "shardwise/base/clock.h"
#include "tests/comm/failures.h"
#include "tests/comm/messages.h"
#include "tests/comm/values.h"
#include "tests/comm/workers.h"
#include "tests/support/deadline.h"

namespace shardwise::comm::shm::point_to_point_failure_test {
namespace {

using namespace shardwise::testing;

constexpr int kRing = int(kEnvelopes);

// ---- Sizes and dtypes

TEST(MessageMismatch, FailsOnBothRanksNamingBothSides) {
  struct Case {
    at::Tensor sent, target;
    std::string words;
  };
  const Case cases[] = {
      {at::full({5}, 1.f), at::full({4}, -1.f), "rank 0 sends float32 [5], rank 1 expects float32 [4]"},
      {at::full({4}, 1.f), at::full({5000}, -1.f), "rank 0 sends float32 [4], rank 1 expects float32 [5000]"},
      {at::full({4}, 1.f, at::kComplexFloat), at::full({4}, -1.f),
       "rank 0 sends ComplexFloat [4], rank 1 expects float32 [4]"},
      {at::full({5000}, 1.f), at::full({0}, -1.f), "rank 0 sends float32 [5000], rank 1 expects float32 [0]"},
      {at::full({4}, 1, at::kInt), at::full({4}, -1.f), "rank 0 sends int32 [4], rank 1 expects float32 [4]"},
  };
  for (const Case& c : cases) {
    for (const bool unexpected : {false, true}) {  // drained from the mailbox before its receive is posted
      const auto errors = errors_of(2, [&](Backend& backend, int rank) {
        if (rank == 0) {
          send(backend, c.sent, 1);
          send(backend, number(5), 1, /*tag=*/1);
        } else {
          if (unexpected) {
            EXPECT_EQ(received(backend, 0, /*tag=*/1), 5);
          }
          recv(backend, c.target, 0);
        }
        backend.barrier({})->wait();
      });
      EXPECT_TRUE(says(errors[1], "recv #")) << errors[1];
      for (const std::string& error : errors) EXPECT_TRUE(says(error, c.words)) << error;
      EXPECT_TRUE(c.target.eq(-1).all().item<bool>());
    }
  }
}

TEST(MessageMismatch, IsReportedByAPollToo) {
  on_backends(2, [](Backend& backend, int rank) {
    if (rank == 0) send(backend, number(1), 1);
    backend.barrier({})->wait();
    if (rank == 0) return;
    const WorkPtr work = irecv(backend, at::empty({2}), 0);
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    ASSERT_TRUE(work->exception() != nullptr);
    EXPECT_THROW(std::rethrow_exception(work->exception()), base::CommError);
    EXPECT_THROW(work->wait(), base::CommError);
  });
}

// ---- Targets

TEST(ReceiveTarget, WhoseElementsShareMemoryIsRefused) {
  on_backends(2, [](Backend& backend, int rank) {
    if (rank == 1) return send(backend, number(5), 0);
    const at::Tensor one = number(7).expand({4});
    EXPECT_THROW(irecv(backend, one, 1), c10::ValueError);
    EXPECT_THROW(irecv_any(backend, one), c10::ValueError);
    EXPECT_EQ(received(backend, 1), 5);
  });
}

// The tensor changes after the receive was posted; its error is found in the wait for another receive.
TEST(ReceiveTarget, ThatCannotBeWrittenToFailsItsOwnWaitOnly) {
  on_backends(2, [](Backend& backend, int rank) {
    const at::Tensor x = at::full({4}, 7, at::kLong);
    if (rank == 1) {
      received(backend, 0);
      send(backend, x, 0, /*tag=*/1);
      send(backend, number(5), 0, /*tag=*/2);
    } else {
      const WorkPtr broken = irecv(backend, x, 1, /*tag=*/1);
      const at::Tensor y = number(-1);
      const WorkPtr other = irecv(backend, y, 1, /*tag=*/2);
      x.as_strided_({4}, {0});
      send(backend, number(0), 1);
      EXPECT_TRUE(other->wait());
      EXPECT_EQ(y.item<int64_t>(), 5);
      for (int i = 0; i < 2; ++i) EXPECT_THROW(broken->wait(), c10::Error);
      EXPECT_TRUE(broken->isCompleted());
      EXPECT_FALSE(broken->isSuccess());
    }
    backend.barrier({})->wait();
  });
}

// ---- Peers that are late

TEST(LateMessage, IsAnErrorAfterTheTimeout) {
  on_backends(
      2,
      [](Backend& backend, int rank) {
        if (rank == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        const base::Stopwatch since_start;
        std::string line;
        const auto where = failure_of([&] { received(backend, 1); }, line);
        EXPECT_EQ(where.op, "recv");
        EXPECT_EQ(where.peer, 1);
        EXPECT_EQ(where.sequence, 1u);
        EXPECT_GE(where.elapsed_s, 0.5);
        EXPECT_EQ(where.limit_s, 0.5);
        expect_within(since_start.seconds(), 1.3);
        EXPECT_TRUE(says(line, "timed out waiting for rank 1 (pid ")) << line;
      },
      /*timeout_ms=*/500);
}

TEST(LateMessage, ReceiveFromAnySourceNamesNoSingleRank) {
  on_backends(
      3,
      [](Backend& backend, int rank) {
        if (rank != 0) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        std::string line;
        const auto where = failure_of([&] { irecv_any(backend, number(-1))->wait(); }, line);
        EXPECT_EQ(where.peer, -1);
        EXPECT_TRUE(says(line, "timed out waiting for any rank")) << line;
      },
      /*timeout_ms=*/500);
}

TEST(LateMessage, UsesTheTimeoutOfTheWait) {
  on_backends(2, [](Backend& backend, int rank) {
    if (rank == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const WorkPtr work = irecv(backend, number(-1), 1);
    std::string line;
    EXPECT_EQ(failure_of([&] { work->wait(std::chrono::milliseconds(100)); }, line).limit_s, 0.1);
  });
}

TEST(LateMessage, EndsAPollingLoopToo) {
  on_backends(
      2,
      [](Backend& backend, int rank) {
        if (rank == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        const base::Stopwatch since_start;
        const WorkPtr work = irecv(backend, number(-1), 1);
        while (!work->isCompleted() && since_start.seconds() < scaled_s(5)) std::this_thread::yield();
        expect_within(since_start.seconds(), 1.3);
        EXPECT_FALSE(work->isSuccess());
        EXPECT_THROW(work->wait(), base::CommError);
      },
      /*timeout_ms=*/500);
}

TEST(FullMailbox, LateReceiverIsAnErrorAfterTheTimeout) {
  on_backends(
      2,
      [](Backend& backend, int rank) {
        if (rank == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        for (int i = 0; i < kRing; ++i) send(backend, number(i), 1);
        std::string line;
        const auto where = failure_of([&] { send(backend, number(kRing), 1); }, line);
        EXPECT_EQ(where.op, "send");
        EXPECT_EQ(where.peer, 1);
        EXPECT_EQ(where.sequence, uint64_t(kRing + 1));
        EXPECT_GE(where.elapsed_s, 0.5);
        EXPECT_TRUE(says(line, "timed out waiting for rank 1 (pid ")) << line;
      },
      /*timeout_ms=*/500);
}

TEST(Abort, EndsWaitsForMessagesAndForRoom) {
  for (const bool sends : {false, true}) {
    on_backends(2, [&](Backend& backend, int rank) {
      if (rank == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        backend.abort();
        return std::this_thread::sleep_for(std::chrono::milliseconds(300));  // before it leaves, too
      }
      const base::Stopwatch since_start;
      for (int i = 0; sends && i < kRing; ++i) send(backend, number(i), 1);
      std::string line;
      const auto where = failure_of(
          [&] {
            if (sends) {
              send(backend, number(kRing), 1);
            } else {
              received(backend, 1);
            }
          },
          line);
      EXPECT_EQ(where.peer, 1);
      EXPECT_TRUE(says(line, "rank 1 aborted: c10d abort")) << line;
      expect_within(since_start.seconds(), 1);
    });
  }
}

// ---- Peers that leave

// Messages sent before remain receivable, though the sender's group and heap are destroyed.
TEST(LeftRank, IsAnErrorOnlyOnceItsMessagesAreReceived) {
  on_backends(2, [](Backend& backend, int rank) {
    if (rank == 1) {
      send(backend, number(7), 0);
      send(backend, value({9000}, 1, at::kFloat), 0, /*tag=*/1);
      return backend.shutdown();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const at::Tensor x = at::empty({9000});
    recv(backend, x, 1, /*tag=*/1);
    EXPECT_TRUE(equals(x, value({9000}, 1, at::kFloat)));
    EXPECT_EQ(received(backend, 1), 7);
    const base::Stopwatch since_start;
    std::string line;
    const auto where = failure_of([&] { received(backend, 1); }, line);
    EXPECT_EQ(where.op, "recv");
    EXPECT_EQ(where.peer, 1);
    EXPECT_TRUE(says(line, "rank 1 (pid ") && says(line, ") left")) << line;
    expect_within(since_start.seconds(), 1);
  });
}

TEST(LeftRank, IsAnErrorForASendToItsFullMailbox) {
  on_backends(2, [](Backend& backend, int rank) {
    if (rank == 1) return backend.shutdown();
    for (int i = 0; i < kRing; ++i) send(backend, number(i), 1);
    std::string line;
    EXPECT_EQ(failure_of([&] { send(backend, number(kRing), 1); }, line).peer, 1);
    EXPECT_TRUE(says(line, ") left")) << line;
  });
}

TEST(LeftRank, IsNoErrorForMessagesOfOtherRanks) {
  on_backends(3, [](Backend& backend, int rank) {
    if (rank == 1) return backend.shutdown();
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 0 waits meanwhile
      send(backend, number(5), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      send(backend, number(6), 0);
      return backend.shutdown();
    }
    EXPECT_EQ(received(backend, 2), 5);
    const at::Tensor x = number(-1);
    irecv_any(backend, x)->wait();
    EXPECT_EQ(x.item<int64_t>(), 6);
    const base::Stopwatch since_start;
    std::string line;
    failure_of([&] { irecv_any(backend, x)->wait(); }, line);  // now that all have left
    EXPECT_TRUE(says(line, ") left")) << line;
    expect_within(since_start.seconds(), 1);
  });
}

// ---- Peers that exit

/// Kills a worker after 100 ms.
class Killer {
 public:
  explicit Killer(const Worker& worker)
      : thread_([&worker] {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          worker.signal(SIGKILL);
        }) {}
  ~Killer() { thread_.join(); }

 private:
  std::thread thread_;
};

class KilledPeer : public ::testing::Test {
 protected:
  /// Connects to two idle workers, kills the first, and expects `call` on rank 0 to name it soon.
  static void expect_named(const std::string& op, const std::function<void(Backend&)>& call) {
    const std::string job = new_job();
    const Worker first("idle", job, 1, 3, 20'000), second("idle", job, 2, 3, 20'000);
    connect(options(job + "-start", 0, 3));
    const auto backend = c10::make_intrusive<Backend>(
        std::make_shared<Transport>(rendezvous(options(job, 0, 3)), 0, std::chrono::seconds(20)));
    backend->barrier({})->wait();
    const base::Stopwatch since_start;
    std::string line;
    {
      const Killer killer(first);
      const auto where = failure_of([&] { call(*backend); }, line);
      EXPECT_EQ(where.op, op);
      EXPECT_EQ(where.peer, 1);
    }
    expect_within(since_start.seconds(), 1.5);
    EXPECT_TRUE(says(line, "rank 1 (pid " + std::to_string(first.pid()) + ") exited")) << line;
  }
};

TEST_F(KilledPeer, IsNamedByAReceiveFromIt) {
  expect_named("recv", [](Backend& backend) { received(backend, 1); });
}

TEST_F(KilledPeer, IsNamedByASendToItsFullMailbox) {
  expect_named("send", [](Backend& backend) {
    for (int i = 0; i <= kRing; ++i) send(backend, number(i), 1);
  });
}

TEST_F(KilledPeer, IsNamedByAReceiveFromAnySource) {
  expect_named("recv", [](Backend& backend) { irecv_any(backend, number(-1))->wait(); });
}

// ---- The monitored barrier

c10d::BarrierOptions within(int ms) {
  c10d::BarrierOptions options;
  options.timeout = std::chrono::milliseconds(ms);
  return options;
}

TEST(MonitoredBarrier, WaitsForTheLastRank) {
  static std::atomic<int> arrived;
  arrived = 0;
  on_backends(3, [](Backend& backend, int rank) {
    for (int round = 1; round <= 20; ++round) {
      if (rank == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++arrived;
      backend.monitoredBarrier(within(20'000), /*name_all=*/round % 2 == 0);
      EXPECT_GE(arrived, 3 * round);
    }
  });
}

TEST(MonitoredBarrier, NamesTheMissingRanksOnAllOthers) {
  for (const bool name_all : {false, true}) {
    const auto errors = errors_of(4, [&](Backend& backend, int rank) {
      if (rank % 2 == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      backend.monitoredBarrier(within(300), name_all);
    });
    for (const int rank : {0, 2}) {
      EXPECT_TRUE(says(errors[size_t(rank)],
                       name_all ? "timed out waiting for ranks: 1, 3;" : "timed out waiting for ranks: 1;"))
          << errors[size_t(rank)];
    }
    EXPECT_TRUE(says(errors[0], "monitored_barrier #")) << errors[0];
  }
}

// Rank 0, whose timeout is far away, names it at once.
TEST(MonitoredBarrier, NamesARankThatLeaves) {
  const base::Stopwatch since_start;
  const auto errors = errors_of(3, [](Backend& backend, int rank) {
    backend.barrier({})->wait();
    if (rank == 1) return backend.shutdown();
    backend.monitoredBarrier(within(20'000), /*name_all=*/true);
  });
  expect_within(since_start.seconds(), 5);
  EXPECT_EQ(errors[1], "no error");
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(says(errors[size_t(rank)], "rank 1 (pid ") && says(errors[size_t(rank)], ") left"))
        << errors[size_t(rank)];
  }
}

// It leaves while rank 0 still waits for rank 2.
TEST(MonitoredBarrier, CompletesWithoutARankThatLeavesAfterItsMessage) {
  const auto errors = errors_of(3, [](Backend& backend, int rank) {
    Control& first = backend.transport()->channel().control(1);
    if (rank == 2) {
      while (first.left == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 0 looks every 50 ms
    }
    if (rank != 1) return backend.monitoredBarrier(within(20'000), /*name_all=*/true);
    const std::jthread leaving([&] {
      while (first.mailboxes[0].posted == 0) std::this_thread::yield();
      backend.transport()->leave();
    });
    try {
      backend.monitoredBarrier(within(20'000), /*name_all=*/true);
    } catch (const c10::ValueError&) {  // it has left before it waits for rank 0's reply
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "no error");
}

}  // namespace
}  // namespace shardwise::comm::shm::point_to_point_failure_test
