// A rank that fails by itself, before it announces a collective or within one: its peers get its error at
// once instead of waiting for their timeouts.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "shardwise/base/clock.h"
#include "tests/comm/backends.h"
#include "tests/comm/collective_calls.h"
#include "tests/comm/failures.h"
#include "tests/comm/threads.h"
#include "tests/comm/workers.h"
#include "tests/support/deadline.h"
#include "tests/support/waited.h"

namespace shardwise::comm::local_failure_test {
namespace {

using namespace shardwise::testing;
using Call = std::function<void(const TestGroup& at, at::Tensor x)>;

/// More than any address space holds; costs nothing until a call copies it.
at::Tensor huge() {
  return at::full({1}, 1.f).expand({int64_t{1} << 48});
}

/// As huge(), but contiguous: must not be read.
at::Tensor huge_without_memory() {
  static float element = 0;
  return at::from_blob(&element, {int64_t{1} << 48}, at::kFloat);
}

/// Without the symmetric heap, which holds no tensor that is too large for it.
void reduce_scatter_chunked(const TestGroup& at, const at::Tensor& input) {
  const at::Tensor x = input.is_contiguous() ? input : huge_without_memory();
  const base::Split split = base::Split::even("x", x.numel(), 3);
  const auto sum = at.group.without_symmetric_heap().reduce_scatter_chunked(x, split);
  for (int i = 0; i < 3; ++i) sum->chunk_ready(i);
  at::Tensor out = x.narrow(0, 0, split.range(at.group.rank()).size());
  sum->wait(out);
}

std::vector<Call> calls_that_copy() {
  static const auto split_of = [](const at::Tensor& x) { return base::Split::even("x", x.numel() * 3, 3); };
  return {
      [](const TestGroup& at, at::Tensor x) { at.group.all_reduce(x); },
      [](const TestGroup& at, at::Tensor x) { at.group.all_reduce_(x); },
      [](const TestGroup& at, const at::Tensor& x) { at.group.all_gather(x, split_of(x)); },
      [](const TestGroup& at, const at::Tensor& x) { at.group.share_shard(x, split_of(x))->get(2); },
      [](const TestGroup& at, const at::Tensor& x) {
        at.group.reduce_scatter(x, base::Split::even("x", x.numel(), 3));
      },
      [](const TestGroup& at, const at::Tensor& x) {
        at.group.all_gather_chunked(x, split_of(x))->wait_chunk(2);
      },
      [](const TestGroup& at, const at::Tensor& x) { reduce_scatter_chunked(at, x); },
      [](const TestGroup& at, at::Tensor x) { at.group.broadcast_(x, 2); },
      [](const TestGroup& at, const at::Tensor& x) { at.group.gather(x, 0); },
      [](const TestGroup& at, const at::Tensor& x) {
        Tensors list = {x};
        at.backend->allreduce(list, {})->wait();
      },
      [](const TestGroup& at, const at::Tensor& x) {
        Tensors list = {x};
        if (at.group.rank() == 2) {
          at.backend->send(list, 0, 0);
        } else {
          at.backend->recv(list, 2, 0)->wait(kNoTimeout);
        }
      },
  };
}

void expect_abort_of_rank_2(const Call& call) {
  on_threads(3, [&](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, 3));
    at.group.barrier();
    const base::Stopwatch since_start;
    std::string line;
    if (rank == 2) {
      EXPECT_THROW(call(at, huge()), c10::Error);
      EXPECT_EQ(failure_of([&] { at.group.barrier(); }, line).peer, 2);
    } else {
      EXPECT_EQ(failure_of([&] { call(at, at::full({3000}, 1.f)); }, line).peer, 2);
    }
    expect_within(since_start.seconds(), 1);
    EXPECT_NE(line.find(": rank 2 aborted: "), std::string::npos) << line;
    EXPECT_TRUE(line.find("memory") != std::string::npos || line.find("heap") != std::string::npos) << line;
  });
}

TEST(RankWithoutMemory, IsNamedByItsPeersWithItsError) {
  for (const Call& call : calls_that_copy()) expect_abort_of_rank_2(call);
}

// The rank goes on without the group, so that only its abort can end the wait of its peers.
TEST(RankWithoutMemory, IsNamedByPeersInOtherProcesses) {
  std::vector<Worker> workers = start_workers("no_memory", 3);
  const std::vector<std::string> outputs = outputs_of(workers);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string& output = outputs[size_t(rank)];
    EXPECT_NE(output.find("all_reduce #2: rank 2 aborted: "), std::string::npos) << output;
    expect_within(waited_s(output, rank), 1);
  }
}

// A tensor whose elements share memory cannot be written to.
TEST(RankWithAnErrorInACollective, IsNamedByItsPeersWithItsError) {
  on_threads(3, [](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, 3));
    Tensors x = {rank == 2 ? at::full({1}, 1.f).expand({5000}) : at.group.empty({5000}, at::kFloat)};
    const base::Stopwatch since_start;
    std::string line;
    if (rank == 2) {
      EXPECT_ANY_THROW(at.backend->broadcast(x, {.rootRank = 0}));
    } else {
      const auto broadcast = [&] {
        at.backend->broadcast(x, {.rootRank = 0})->wait();
        at.group.barrier();
      };
      EXPECT_EQ(failure_of(broadcast, line).peer, 2);
      EXPECT_NE(line.find(": rank 2 aborted: unsupported operation"), std::string::npos) << line;
    }
    expect_within(since_start.seconds(), 1);
  });
}

// All ranks reject the same arguments, and go on.
TEST(InvalidArgument, DoesNotAbortTheGroup) {
  on_threads(2, [](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, 2));
    EXPECT_THROW(at.group.all_reduce(at::full({3}, true), Reduce::average), c10::ValueError);
    EXPECT_THROW(at.group.all_to_all(at::full({3}, 1.f)), c10::ValueError);
    EXPECT_EQ(at.group.all_reduce(at::full({1}, 1.f)).item<float>(), 2);
  });
}

}  // namespace
}  // namespace shardwise::comm::local_failure_test
