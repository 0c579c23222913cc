// Messages between two ranks: contents, order, tags, any source, and memory use.
#include <random>
#include <thread>

#include "tests/comm/messages.h"
#include "tests/comm/values.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::shm::point_to_point_test {
namespace {

using namespace shardwise::testing;

constexpr int kRing = int(kEnvelopes);

class PointToPoint : public ::testing::TestWithParam<int> {};

// Includes messages of a rank to itself. Sizes around the capacity of an envelope, and an odd large one.
TEST_P(PointToPoint, AllSendToAllBeforeTheyReceive) {
  const int64_t inlined = int64_t(kInlineMessage);
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1}, inlined - 1, inlined, inlined + 1, (int64_t{4} << 20) + 3}) {
    on_backends(GetParam(), [&](Backend& backend, int rank) {
      for (int peer = 0; peer < GetParam(); ++peer)
        send(backend, value({bytes}, 10 * rank + peer, at::kByte), peer);
      for (int peer = 0; peer < GetParam(); ++peer) {
        const at::Tensor x = at::full({bytes}, 77, at::kByte);
        recv(backend, x, peer);
        EXPECT_TRUE(equals(x, value({bytes}, 10 * peer + rank, at::kByte))) << bytes;
      }
    });
  }
}

// A tensor may be overwritten as soon as send returns, in any kind of memory.
TEST_P(PointToPoint, CopiesAnyDtypeFromAnyMemoryToAnyOther) {
  on_backends(GetParam(), [](Backend& backend, int rank) {
    const int ranks = GetParam(), next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (const at::ScalarType dtype : kDtypes) {
      for (const int64_t rows : {3, 300}) {
        for (const Memory from : kMemories) {
          for (const Memory to : kMemories) {
            at::Tensor x = placed(backend, value({rows, 5}, rank, dtype), from);
            send(backend, x, next);
            x.fill_(99);
            x = placed_like(backend, value({rows, 5}, rank, dtype), to);
            recv(backend, x, previous);
            EXPECT_TRUE(equals(x, value({rows, 5}, previous, dtype)))
                << c10::toString(dtype) << " from " << int(from) << " to " << int(to);
          }
        }
      }
    }
  });
}

// Around a ring of ranks: no rank could continue if a full mailbox blocked its sender.
TEST_P(PointToPoint, SendsMoreMessagesThanAMailboxHoldsBeforeReceiving) {
  on_backends(GetParam(), [](Backend& backend, int rank) {
    const int ranks = GetParam(), next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int i = 0; i < 5 * kRing; ++i) send(backend, value({1 + i * 40}, rank + i, at::kFloat), next, i % 3);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int tag = 2; tag >= 0; --tag) {
      for (int i = tag; i < 5 * kRing; i += 3) {
        const at::Tensor x = at::empty({1 + i * 40});
        recv(backend, x, previous, tag);
        EXPECT_TRUE(equals(x, value({1 + i * 40}, previous + i, at::kFloat))) << i;
      }
    }
  });
}

TEST_P(PointToPoint, SendsMoreMessagesThanAMailboxHoldsToRanksInACollective) {
  on_backends(GetParam(), [](Backend& backend, int rank) {
    for (int i = 0; rank == 0 && i < 3 * kRing; ++i) {
      for (int peer = 1; peer < GetParam(); ++peer) send(backend, number(100 * peer + i), peer);
    }
    backend.barrier(c10d::BarrierOptions())->wait();
    for (int i = 0; rank > 0 && i < 3 * kRing; ++i) EXPECT_EQ(received(backend, 0), 100 * rank + i);
  });
}

TEST_P(PointToPoint, DeliversAllMessagesInOrderToALateReceiver) {
  on_backends(GetParam(), [](Backend& backend, int rank) {
    for (int i = 0; rank == 0 && i < 4 * kRing; ++i) {
      for (int peer = 1; peer < GetParam(); ++peer) send(backend, number(100 * peer + i), peer);
    }
    if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (int i = 0; rank > 0 && i < 4 * kRing; ++i) EXPECT_EQ(received(backend, 0), 100 * rank + i);
  });
}

TEST_P(PointToPoint, AnySourceReceivesEachRanksMessagesInOrderAndNamesTheSender) {
  constexpr int kEach = 3 * kRing;
  on_backends(GetParam(), [](Backend& backend, int rank) {
    for (int i = 0; rank > 0 && i < kEach; ++i) {
      send(backend, number(-7), 0, /*tag=*/8);  // another tag
      send(backend, number(1000 * rank + i), 0, /*tag=*/9);
    }
    std::vector<int> received_from(size_t(GetParam()), 0);
    for (int i = 0; rank == 0 && i < kEach * (GetParam() - 1); ++i) {
      const at::Tensor x = number(-1);
      const WorkPtr work = irecv_any(backend, x, /*tag=*/9);
      work->wait();
      const int source = work->sourceRank();
      ASSERT_TRUE(source > 0 && source < GetParam());
      EXPECT_EQ(x.item<int64_t>(), 1000 * source + received_from[size_t(source)]++);
    }
    for (int peer = 1; rank == 0 && peer < GetParam(); ++peer) EXPECT_EQ(received(backend, peer, 8), -7);
  });
}

// All ranks draw the same random sequence of messages. Each performs its sends and receives, and sometimes
// waits for one of its receives.
TEST_P(PointToPoint, RandomMessagesArriveInOrder) {
  struct Planned {
    int from, to, tag;
    int64_t numel;
  };
  struct Expected {
    at::Tensor target;
    int64_t numel;
    int seed, from;
    WorkPtr work;
  };
  for (unsigned seed = 1; seed <= 3; ++seed) {
    on_backends(GetParam(), [&](Backend& backend, int rank) {
      std::mt19937 plan(seed), local(seed * 31 + unsigned(rank));
      std::vector<Expected> expected;
      const auto finish = [&](Expected& one) {
        if (local() % 2 == 0) one.work->isCompleted();
        one.work->wait();
        EXPECT_EQ(one.work->sourceRank(), one.from);
        EXPECT_TRUE(equals(one.target, value({one.numel}, one.seed, at::kFloat))) << "seed " << seed;
      };
      for (int i = 0; i < 600; ++i) {
        const int ranks = GetParam();
        const unsigned most = plan() % 4 == 0 ? 20'000 : 200;
        const Planned m{int(plan() % unsigned(ranks)), int(plan() % unsigned(ranks)), int(plan() % 3),
                        int64_t(plan() % most)};
        if (m.to == rank) {
          const at::Tensor target = at::full({m.numel}, -1.f);
          expected.push_back({target, m.numel, i, m.from, irecv(backend, target, m.from, m.tag)});
        }
        if (m.from == rank) send(backend, value({m.numel}, i, at::kFloat), m.to, m.tag);
        // All messages drawn so far are sent without waiting for a message drawn later.
        if (!expected.empty() && local() % 8 == 0) finish(expected[local() % expected.size()]);
      }
      for (Expected& one : expected) finish(one);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PointToPoint, ::testing::Values(2, 3, 4));

TEST(Tags, AreReceivedInAnyOrder) {
  on_backends(2, [](Backend& backend, int rank) {
    constexpr int kTags = 10, kEach = 3;
    for (int i = 0; rank == 0 && i < kEach; ++i) {
      for (int tag = 0; tag < kTags; ++tag) send(backend, number(100 * tag + i), 1, tag);
    }
    for (int tag = kTags - 1; rank == 1 && tag >= 0; --tag) {
      for (int i = 0; i < kEach; ++i) EXPECT_EQ(received(backend, 0, tag), 100 * tag + i);
    }
  });
}

// Both ranks post all receives before sending, and wait for them from the last to the first.
TEST(Receives, MatchMessagesInPostingOrder) {
  on_backends(2, [](Backend& backend, int rank) {
    constexpr int kMany = 50;
    Tensors targets;
    std::vector<WorkPtr> works;
    for (int i = 0; i < kMany; ++i) {
      targets.push_back(number(-1));
      works.push_back(irecv(backend, targets.back(), 1 - rank, i % 2));
    }
    for (int i = 0; i < kMany; ++i) send(backend, number(100 * rank + i), 1 - rank, i % 2);
    for (int i = kMany - 1; i >= 0; --i) {
      works[size_t(i)]->wait();
      EXPECT_EQ(targets[size_t(i)].item<int64_t>(), 100 * (1 - rank) + i);
    }
  });
}

TEST(Receives, AnySourceMatchesInPostingOrderAmongThoseOfOneSource) {
  on_backends(2, [](Backend& backend, int rank) {
    for (int i = 0; rank == 0 && i < 3; ++i) send(backend, number(i), 1);
    backend.barrier({})->wait();
    if (rank == 0) return;
    const at::Tensor first = number(-1), second = number(-1), third = number(-1);
    const WorkPtr one = irecv(backend, first, 0), any = irecv_any(backend, second),
                  last = irecv(backend, third, 0);
    last->wait();
    any->wait();
    one->wait();
    EXPECT_EQ(first.item<int64_t>(), 0);
    EXPECT_EQ(second.item<int64_t>(), 1);
    EXPECT_EQ(third.item<int64_t>(), 2);
  });
}

TEST(Receives, AreCompletedByAPollAfterTheMessage) {
  on_backends(2, [](Backend& backend, int rank) {
    const at::Tensor x = number(rank == 0 ? 5 : -1);
    const WorkPtr work = rank == 1 ? irecv(backend, x, 0) : nullptr;
    if (rank == 1) {
      EXPECT_FALSE(work->isCompleted());
      EXPECT_FALSE(work->isSuccess());
    }
    backend.barrier({})->wait();
    if (rank == 0) send(backend, x, 1);
    backend.barrier({})->wait();
    if (rank == 0) return;
    EXPECT_EQ(x.item<int64_t>(), -1);  // without a call no message is received
    EXPECT_TRUE(work->isCompleted() && work->isSuccess());
    EXPECT_EQ(work->result().at(0).item<int64_t>(), 5);
    EXPECT_EQ(work->sourceRank(), 0);
    EXPECT_TRUE(work->wait());
  });
}

TEST(Receives, ThatAreDroppedLeaveTheirMessageToTheNextReceive) {
  on_backends(2, [](Backend& backend, int rank) {
    const at::Tensor dropped = number(-1), next = number(-1);
    if (rank == 1) irecv(backend, dropped, 0);
    backend.barrier({})->wait();
    if (rank == 0) return send(backend, number(5), 1);
    recv(backend, next, 0);
    EXPECT_EQ(dropped.item<int64_t>(), -1);
    EXPECT_EQ(next.item<int64_t>(), 5);
  });
}

TEST(Messages, AreIndependentOfCollectives) {
  on_backends(3, [](Backend& backend, int rank) {
    const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
    for (int i = 0; i < 20; ++i) {
      const at::Tensor sent = placed(backend, value({3000}, rank, at::kFloat), Memory::in_heap);
      send(backend, sent, next);
      Tensors x = {placed(backend, value({3000}, rank, at::kFloat), Memory::in_heap)};
      backend.allreduce(x, {})->wait();
      EXPECT_TRUE(equals(x[0], reduced({3000}, 3, Reduce::sum)));
      const at::Tensor got = at::empty({3000});
      recv(backend, got, previous);
      EXPECT_TRUE(equals(got, value({3000}, previous, at::kFloat)));
    }
  });
}

TEST(MessageMemory, IsFreedOnceReceived) {
  on_ranks(2, [](Group group) {
    constexpr int64_t kNumel = 1 << 18;
    const auto live = [&] { return group.symmetric_heap()->live_bytes(); };
    const int64_t before = live();
    at::Tensor x = at::full({kNumel}, 1.f);
    for (int i = 0; i < 2 * kRing; ++i) {
      if (group.rank() == 0) group.send(x, 1, /*tag=*/i % 2);
    }
    if (group.rank() == 0) {
      EXPECT_GT(live(), before);
    }
    for (int tag = 0; group.rank() == 1 && tag < 2; ++tag) {
      for (int i = 0; i < kRing; ++i) group.recv_(x, 0, tag);
    }
    group.barrier();
    EXPECT_EQ(live(), before);
  });
}

// Without a collective in between: the heap's quarantine would wait for one.
TEST(MessageMemory, IsReusedByTheNextMessage) {
  on_ranks(2, [](Group group) {
    constexpr int64_t kNumel = 1 << 18;
    at::Tensor x = at::full({kNumel}, 1.f), answer = at::full({1}, 1.f);
    const at::Tensor allocated_before = group.empty({kNumel}, at::kFloat);
    const int64_t before = group.symmetric_heap()->live_bytes();
    group.symmetric_heap()->reset_peak();
    for (int i = 0; i < 100; ++i) {
      if (group.rank() == 0) {
        group.send(x, 1);
        group.recv_(answer, 1);
      } else {
        group.recv_(x, 0);
        group.send(answer, 0);
      }
    }
    const int64_t most = group.symmetric_heap()->peak_bytes() - before;
    EXPECT_EQ(most, group.rank() == 0 ? 4 * kNumel : 0);
    const at::Tensor allocated_after = group.empty({kNumel}, at::kFloat);
    EXPECT_LE(allocated_after.data_ptr<float>() - allocated_before.data_ptr<float>(), 3 * kNumel);
  });
}

TEST(MessageArguments, AreChecked) {
  on_backends(2, [](Backend& backend, int) {
    Tensors one = {number(1)}, two = {number(1), number(2)};
    EXPECT_THROW(backend.send(one, 2, 0), c10::ValueError);
    EXPECT_THROW(backend.send(one, -1, 0), c10::ValueError);
    EXPECT_THROW(backend.recv(one, 2, 0), c10::ValueError);
    EXPECT_THROW(backend.send(two, 0, 0), c10::ValueError);
    EXPECT_THROW(backend.recv(two, 0, 0), c10::ValueError);
    EXPECT_THROW(backend.recvAnysource(two, 0), c10::ValueError);
    backend.barrier({})->wait();
    backend.shutdown();
    EXPECT_THROW(backend.send(one, 0, 0), c10::ValueError);
    EXPECT_THROW(backend.recv(one, 0, 0), c10::ValueError);
  });
  on_ranks(2, [](Group group) {
    at::Tensor x = number(1);
    EXPECT_THROW(group.send(x, group.rank()), c10::ValueError);
    EXPECT_THROW(group.recv_(x, 2), c10::ValueError);
  });
  at::Tensor x = number(1);
  EXPECT_THROW(Group().send(x, 0), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::comm::shm::point_to_point_test
