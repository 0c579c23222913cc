// Groups over a backend of c10d, as over NCCL's: here over the shared-memory backend through c10d's
// interface.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>

#include "shardwise/comm/collective_backend.h"
#include "tests/comm/backends.h"
#include "tests/comm/values.h"

namespace shardwise::comm::c10d_group_test {
namespace {

using namespace shardwise::testing;
using std::chrono::milliseconds;

/// Runs `body` with a group of each rank, whose backend knows only c10d's interface.
void on_groups(int ranks, const std::function<void(const Group&)>& body) {
  on_backends(ranks, [&](shm::Backend& backend, int) {
    body(Group(c10::intrusive_ptr<c10d::Backend>::reclaim_copy(&backend)));
  });
}

at::Tensor of(int64_t numel, int rank) {
  return value({numel}, rank, at::kFloat);
}

/// Returns an output with gaps between its elements.
at::Tensor strided(int64_t numel) {
  return at::empty({2 * numel}).slice(0, 0, at::nullopt, 2);
}

/// Returns the text of the error that a barrier throws, or "no error".
std::string barrier_error(const Group& group) {
  try {
    group.barrier();
  } catch (const c10::Error& error) {
    return base::one_line(error);
  }
  return "no error";
}

TEST(GroupOverC10d, HasTheNameAndTheSequenceOfItsBackend) {
  on_groups(2, [](const Group& group) {
    EXPECT_EQ(group.backend()->backend_name(), "shardwise");
    const uint64_t before = group.backend()->sequence();
    group.barrier();
    group.barrier();
    EXPECT_EQ(group.backend()->sequence(), before + 2);
  });
}

TEST(GroupOverC10d, SetsTheTimeoutOfItsBackend) {
  on_groups(2, [](const Group& group) {
    EXPECT_EQ(group.backend()->timeout(), milliseconds(20'000));
    group.backend()->set_timeout(milliseconds(19'000));
    EXPECT_EQ(group.backend()->timeout(), milliseconds(19'000));
    try {
      group.backend()->set_timeout(milliseconds(0));
      ADD_FAILURE() << "no error";
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(base::without_code(base::one_line(error)),
                "set_timeout: a timeout must be above 0 ms; got 0");
    }
    EXPECT_EQ(group.backend()->timeout(), milliseconds(19'000));
  });
}

// Each rank sends every other rank a piece of another size; strided tensors are copied.
TEST(GroupOverC10d, ExchangesListsOfUnevenPieces) {
  const auto between = [](int from, int to) { return int64_t{5 + 700 * from + 3 * to}; };
  on_groups(3, [&](const Group& group) {
    Tensors pieces, outs;
    for (int peer = 0; peer < group.size(); ++peer) {
      pieces.push_back(
          strided(between(group.rank(), peer)).copy_(of(between(group.rank(), peer), group.rank())));
      outs.push_back(peer == 0 ? at::empty({between(peer, group.rank())})
                               : strided(between(peer, group.rank())));
    }
    group.backend()->all_to_all(outs, pieces);
    for (int peer = 0; peer < group.size(); ++peer)
      EXPECT_TRUE(equals(outs[size_t(peer)], of(between(peer, group.rank()), peer))) << "from " << peer;
  });
}

TEST(GroupOverC10d, WritesItsResultsIntoStridedTensors) {
  on_groups(2, [](const Group& group) {
    at::Tensor x = strided(300).copy_(of(300, group.rank())), y = strided(300).copy_(x);
    group.broadcast_(x, /*root=*/1);
    EXPECT_TRUE(equals(x, of(300, 1)));
    group.all_reduce_(y);
    EXPECT_TRUE(equals(y, reduced({300}, 2, Reduce::sum)));
  });
}

TEST(GroupOverC10d, AReceiveReturnsWithItsMessage) {
  on_groups(2, [](const Group& group) {
    if (group.rank() == 1) return group.send(of(300, 1), /*to=*/0);
    at::Tensor x = at::empty({300}).fill_(-1);
    group.recv_(x, /*from=*/1);
    EXPECT_TRUE(equals(x, of(300, 1)));
  });
}

TEST(GroupOverC10d, AReceiveFromAnySourceNamesItsSender) {
  on_groups(2, [](const Group& group) {
    const at::Tensor x = at::empty({300});
    const auto receive = group.rank() == 0 ? group.backend()->receive(x, kAnySource, /*tag=*/3) : nullptr;
    if (receive != nullptr) {
      EXPECT_FALSE(receive->poll());
      EXPECT_EQ(receive->sender(), -1);
    }
    group.barrier();
    if (group.rank() == 1) group.backend()->send(of(300, 1), /*to=*/0, /*tag=*/3);
    if (receive == nullptr) return;
    while (!receive->poll()) std::this_thread::yield();
    EXPECT_EQ(receive->sender(), 1);
    EXPECT_TRUE(equals(x, of(300, 1)));
  });
}

TEST(GroupOverC10d, AnAbortEndsTheOtherRanksCalls) {
  on_groups(3, [](const Group& group) {
    group.barrier();
    if (group.rank() == 1) {
      group.abort("the reason, which c10d does not carry");
    } else {
      EXPECT_TRUE(says(barrier_error(group), "rank 1 aborted: c10d abort")) << barrier_error(group);
    }
  });
}

TEST(GroupOverC10d, ARankThatLeavesIsNamed) {
  on_groups(2, [](const Group& group) {
    group.barrier();
    if (group.rank() == 1) {
      group.backend()->leave();
      EXPECT_TRUE(says(barrier_error(group), "must not be used after shutdown")) << barrier_error(group);
    } else {
      EXPECT_TRUE(says(barrier_error(group), ") left")) << barrier_error(group);
    }
  });
}

}  // namespace
}  // namespace shardwise::comm::c10d_group_test
