// Wrong use of symmetric memory, and peers that exit, leave or time out while a rank waits for a signal.
#include <signal.h>

#include <thread>

#include "shardwise/base/clock.h"
#include "shardwise/comm/shm/symmetric_memory.h"
#include "tests/comm/failures.h"
#include "tests/comm/symmetric_heap.h"
#include "tests/comm/workers.h"
#include "tests/support/deadline.h"

namespace shardwise::comm::shm::symmetric_failure_test {
namespace {

using namespace shardwise::testing;

// ---- Usage errors

TEST(SymmetricUsageError, IsOneLineWithRuleAndValue) {
  on_registered(3, [](Backend& backend, int rank) {
    const SymmetricHandle handle = rendezvous_over(symmetric(10, 0));
    const std::string channels = std::to_string(c10d::symmetric_memory::get_signal_pad_size() / 4 / 3);
    EXPECT_TRUE(says(value_error_of([&] { handle->barrier(-1, 0); }),
                     "symmetric_barrier: channel must be in [0, " + channels + ") of a signal pad of "));
    EXPECT_TRUE(says(value_error_of([&] { handle->put_signal(0, std::stoi(channels), 0); }),
                     "put_signal: channel must be in [0, " + channels + ") of a signal pad of "));
    EXPECT_EQ(value_error_of([&] { handle->wait_signal(3, 0, 0); }),
              "wait_signal: rank must be in [0, 3); got 3");
    EXPECT_EQ(value_error_of([&] { handle->put_signal(-1, 0, 0); }),
              "put_signal: rank must be in [0, 3); got -1");
    EXPECT_THROW(handle->get_buffer(0, {10}, at::kFloat, 1), c10::Error);
    EXPECT_EQ(value_error_of([&] { rendezvous_over(at::full({10}, 1.f)); }),
              "symmetric memory: the storage must be allocated by symmetric memory; got another one");
    EXPECT_THROW(rendezvous_over(symmetric(10, 0), "no group"), c10::Error);
    EXPECT_THROW(symmetric(10, 0, "no group"), c10::Error);
    handle->barrier(std::stoi(channels) - 1, 0);  // and the group still works
    backend.shutdown();
    EXPECT_TRUE(
        says(value_error_of([&] { handle->barrier(0, 0); }), "the group must not be used after shutdown"));
    EXPECT_EQ(value_error_of([&] { rendezvous_over(symmetric(10, 0)); }),
              "rendezvous: the group must not be used after shutdown; got a call");
  });
}

class OtherBackend final : public c10d::Backend {
 public:
  OtherBackend() : c10d::Backend(0, 1) {}
  const std::string getBackendName() const override { return "other"; }
};

TEST(SymmetricUsageError, NamesAGroupOfAnotherBackend) {
  on_registered(2, [](Backend&, int) {
    const Registered other("elsewhere", c10::make_intrusive<OtherBackend>());
    const std::string rule =
        "symmetric memory: the backend of the group must be shardwise; got group elsewhere of backend other";
    EXPECT_EQ(value_error_of([] { symmetric(10, 0, "elsewhere"); }), rule);
    EXPECT_EQ(value_error_of([] { rendezvous_over(symmetric(10, 0), "elsewhere"); }), rule);
  });
}

TEST(SymmetricUsageError, MemoryOfDifferentGroupsFailsOnAllRanks) {
  const std::string job = new_job();
  on_registered(2, [&](Backend&, int rank) {
    const auto second = c10::make_intrusive<Backend>(
        std::make_shared<Transport>(rendezvous(options(job, rank, 2)), rank, std::chrono::seconds(20)));
    const Registered group("second", second);
    const at::Tensor x = rank == 0 ? symmetric(10, 0) : symmetric(10, 0, "second");
    for (const char* name : {"second", kDefaultGroup}) {
      EXPECT_TRUE(
          says(value_error_of([&] { rendezvous_over(x, name); }),
               "rendezvous: all ranks must pass memory of the same group; got another group's from rank 1"));
    }
    rendezvous_over(symmetric(10, 0, "second"))->barrier(0, 0);
  });
}

TEST(SymmetricUsageError, PadsOfDifferentSizesFailOnAllRanks) {
  const size_t usual = c10d::symmetric_memory::get_signal_pad_size();
  on_registered(2, [&](Backend& backend, int rank) {
    const at::Tensor early = symmetric(10, 0);
    const SymmetricHandle handle = rendezvous_over(early);
    backend.barrier({})->wait();
    if (rank == 0) c10d::symmetric_memory::set_signal_pad_size(2 * usual);
    backend.barrier({})->wait();
    const at::Tensor late = rank == 0 ? symmetric(10, 0) : early.new_empty({0});
    EXPECT_TRUE(says(value_error_of([&] { handle->get_signal_pad(0, {}); }),
                     "symmetric memory: the signal pad size must be set before allocating; got "));
    backend.barrier({})->wait();
    if (rank == 0) c10d::symmetric_memory::set_signal_pad_size(usual);
    backend.barrier({})->wait();
    const at::Tensor x = rank == 0 ? late : symmetric(10, 0);
    EXPECT_TRUE(says(value_error_of([&] { rendezvous_over(x); }),
                     "rendezvous: signal pads must have the same size on all ranks"));
  });
}

TEST(SymmetricUsageError, DifferentSizesAreNamedOnAllRanks) {
  std::string errors[2];
  on_registered(2, [&](Backend&, int rank) {
    failure_of([&] { rendezvous_over(symmetric(10 + rank, 0)); }, errors[rank]);
  });
  for (const std::string& error : errors) {
    EXPECT_TRUE(says(error, "rank 0 runs share_shard uint8 [40]") &&
                says(error, "rank 1 runs share_shard uint8 [44]"))
        << error;
  }
}

// ---- Late peers

TEST(LateSignal, IsAnErrorAfterTheTimeoutOfTheCallOrTheGroup) {
  struct Case {
    size_t timeout_ms;
    double limit_s;
  };
  for (const Case& c : {Case{0, 0.5}, Case{100, 0.1}, Case{60'000, 0.5}}) {
    on_registered(
        2,
        [&](Backend&, int rank) {
          const SymmetricHandle handle = rendezvous_over(symmetric(4, 0));
          if (rank == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          const base::Stopwatch since_start;
          std::string line;
          const auto where = failure_of([&] { handle->wait_signal(1, 0, c.timeout_ms); }, line);
          EXPECT_EQ(where.op, "wait_signal");
          EXPECT_EQ(where.rank, 0);
          EXPECT_EQ(where.peer, 1);
          EXPECT_EQ(where.sequence, 1u);
          EXPECT_GE(where.elapsed_s, c.limit_s);
          EXPECT_EQ(where.limit_s, c.limit_s);
          expect_within(since_start.seconds(), c.limit_s + 0.8);
          EXPECT_TRUE(says(line, "timed out waiting for rank 1 (pid ")) << line;
        },
        /*timeout_ms=*/500);
  }
}

TEST(LateSignal, BarrierNamesTheMissingRank) {
  on_registered(
      3,
      [](Backend&, int rank) {
        const SymmetricHandle handle = rendezvous_over(symmetric(4, 0));
        if (rank == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        std::string line;
        const auto where = failure_of([&] { handle->barrier(0, 0); }, line);
        EXPECT_EQ(where.op, "symmetric_barrier");
        EXPECT_EQ(where.peer, 1);
        EXPECT_TRUE(says(line, "timed out waiting for rank 1 (pid ")) << line;
      },
      /*timeout_ms=*/500);
}

TEST(LateSignal, IsAnErrorIfThePreviousSignalIsNotConsumed) {
  on_registered(
      2,
      [](Backend&, int rank) {
        const SymmetricHandle handle = rendezvous_over(symmetric(4, 0));
        if (rank == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        handle->put_signal(1, 0, 0);
        std::string line;
        EXPECT_EQ(failure_of([&] { handle->put_signal(1, 0, 0); }, line).op, "put_signal");
      },
      /*timeout_ms=*/500);
}

// A signal put before the peer left can still be consumed.
TEST(LeftSignaler, IsAnErrorOnlyForAMissingSignal) {
  on_registered(2, [](Backend& backend, int rank) {
    const SymmetricHandle handle = rendezvous_over(symmetric(4, 0));
    if (rank == 1) {
      handle->put_signal(0, 0, 0);
      return backend.shutdown();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    handle->wait_signal(1, 0, 0);
    const base::Stopwatch since_start;
    std::string line;
    EXPECT_EQ(failure_of([&] { handle->wait_signal(1, 0, 0); }, line).peer, 1);
    EXPECT_TRUE(says(line, "rank 1 (pid ") && says(line, ") left")) << line;
    expect_within(since_start.seconds(), 1);
  });
}

TEST(Abort, EndsAWaitForASignal) {
  on_registered(2, [](Backend& backend, int rank) {
    const SymmetricHandle handle = rendezvous_over(symmetric(4, 0));
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      backend.abort();
      return std::this_thread::sleep_for(std::chrono::milliseconds(300));  // before it leaves, too
    }
    const base::Stopwatch since_start;
    std::string line;
    EXPECT_EQ(failure_of([&] { handle->wait_signal(1, 0, 0); }, line).peer, 1);
    EXPECT_TRUE(says(line, "rank 1 aborted: c10d abort")) << line;
    expect_within(since_start.seconds(), 1);
  });
}

TEST(KilledSignaler, IsNamedByTheWaitingRank) {
  const std::string job = new_job();
  const Worker first("idle", job, 1, 3, 20'000), second("idle", job, 2, 3, 20'000);
  connect(options(job + "-start", 0, 3));
  Transport transport(rendezvous(options(job, 0, 3)), 0, std::chrono::seconds(20));
  transport.barrier();
  std::vector<uint32_t> pad(8);  // the workers put no signals
  std::vector<Flag*> doorbells;
  for (int rank = 0; rank < 3; ++rank) doorbells.push_back(&transport.channel().control(rank).doorbell);
  Signals signals(transport.channel(), {{pad.data(), pad.data(), pad.data()}, {0, 1, 2}, doorbells, 3, 32});
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    first.signal(SIGKILL);
  });
  const base::Stopwatch since_start;
  std::string line;
  EXPECT_EQ(failure_of([&] { signals.wait(1, 0, Signals::Limit(0)); }, line).peer, 1);
  killer.join();
  expect_within(since_start.seconds(), 1.5);
  EXPECT_TRUE(says(line, "rank 1 (pid " + std::to_string(first.pid()) + ") exited")) << line;
}

}  // namespace
}  // namespace shardwise::comm::shm::symmetric_failure_test
