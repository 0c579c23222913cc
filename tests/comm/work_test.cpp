// The Works that c10d's calls return: those of collectives, of receives and of coalesced blocks.
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <thread>

#include "shardwise/comm/c10d_types.h"
#include "tests/comm/messages.h"
#include "tests/comm/values.h"

namespace shardwise::comm::work_test {
namespace {

using namespace shardwise::testing;
using shm::Backend;

at::Tensor of(int64_t numel, int rank) {
  return value({numel}, rank, at::kFloat);
}

WorkPtr allreduce(Backend& backend, const at::Tensor& x) {
  Tensors tensors = {x};
  return backend.allreduce(tensors, {});
}

/// Returns the text of the CommError of `call`, or "no error".
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::CommError& error) {
    return base::one_line(error);
  }
  return "no error";
}

/// Runs `body` on rank 0 of a group that rank 1 has aborted.
void after_abort(const std::function<void(Backend&)>& body) {
  on_backends(2, [&](Backend& backend, int rank) {
    backend.barrier({})->wait();
    if (rank == 1) backend.abort("of the test");
    if (rank == 0) body(backend);
  });
}

constexpr const char* kAborted = "rank 1 aborted: of the test";

TEST(DoneWork, SucceedsWhenTheCallReturns) {
  on_backends(2, [](Backend& backend, int rank) {
    const WorkPtr work = allreduce(backend, of(5, rank));
    work->synchronize();
    EXPECT_TRUE(equals(work->result().at(0), reduced({5}, 2, Reduce::sum)));
    EXPECT_EQ(work->getFutureResult()->value().toInt(), int64_t(c10d::WorkResult::SUCCESS));
  });
}

TEST(DoneWork, HasTheErrorOfTheCall) {
  after_abort([](Backend& backend) {
    const WorkPtr work = allreduce(backend, of(5, 0));
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    EXPECT_TRUE(work->result().empty());
    EXPECT_TRUE(says(error_of([&] { work->synchronize(); }), kAborted));
    EXPECT_TRUE(says(error_of([&] { work->wait(); }), kAborted));
    ASSERT_TRUE(work->getFuture()->hasError());
    EXPECT_TRUE(
        says(error_of([&] { std::rethrow_exception(work->getFuture()->exception_ptr()); }), kAborted));
    EXPECT_EQ(work->getFutureResult()->value().toInt(), int64_t(c10d::WorkResult::COMM_ERROR));
  });
}

TEST(ReceiveWork, SynchronizeDoesNotWait) {
  on_backends(2, [](Backend& backend, int rank) {
    const at::Tensor x = number(-1);
    const WorkPtr work = rank == 0 ? irecv(backend, x, /*from=*/1) : nullptr;
    if (rank == 0) {
      work->synchronize();
      EXPECT_FALSE(work->isCompleted());
    }
    backend.barrier({})->wait();
    if (rank == 1) return send(backend, number(7), /*to=*/0);
    work->wait();
    EXPECT_EQ(work->result().at(0).item<int64_t>(), 7);
  });
}

/// Starts two receives from rank 1 in one block.
WorkPtr receive_coalesced(Backend& backend, const at::Tensor& x, const at::Tensor& y) {
  backend.startCoalescing();
  irecv(backend, x, /*from=*/1, /*tag=*/0);
  irecv(backend, y, /*from=*/1, /*tag=*/1);
  return backend.endCoalescing();
}

TEST(CoalescedWork, HoldsTheResultsInTheOrderOfTheCalls) {
  on_backends(2, [](Backend& backend, int rank) {
    EXPECT_TRUE(backend.supportsCoalescing());
    backend.startCoalescing();
    for (const int64_t numel : {5, 3, 4000}) allreduce(backend, of(numel, rank));
    const WorkPtr work = backend.endCoalescing();
    EXPECT_TRUE(work->wait() && work->isCompleted() && work->isSuccess());
    EXPECT_EQ(work->exception(), nullptr);
    const at::Tensor expected = at::cat(
        {reduced({5}, 2, Reduce::sum), reduced({3}, 2, Reduce::sum), reduced({4000}, 2, Reduce::sum)});
    EXPECT_TRUE(equals(at::cat(work->result()), expected));
    EXPECT_TRUE(equals(at::cat(work->getFuture()->value().toTensorVector()), expected));
  });
}

TEST(CoalescedWork, CompletesWithTheLastReceive) {
  on_backends(2, [](Backend& backend, int rank) {
    const at::Tensor x = number(-1), y = number(-1);
    const WorkPtr work = rank == 0 ? receive_coalesced(backend, x, y) : nullptr;
    for (int tag = 0; tag < 2; ++tag) {
      if (rank == 0) {
        work->synchronize();
        EXPECT_FALSE(work->isCompleted());
        EXPECT_FALSE(work->isSuccess());
      }
      backend.barrier({})->wait();
      if (rank == 1) send(backend, number(tag), /*to=*/0, tag);
      backend.barrier({})->wait();
    }
    if (rank == 1) return;
    while (!work->isCompleted()) std::this_thread::yield();
    EXPECT_TRUE(work->isSuccess());
    EXPECT_EQ(x.item<int64_t>(), 0);
    EXPECT_EQ(y.item<int64_t>(), 1);
  });
}

TEST(CoalescedWork, HasTheErrorOfItsFirstFailedCall) {
  after_abort([](Backend& backend) {
    backend.startCoalescing();
    allreduce(backend, of(5, 0));
    const WorkPtr work = backend.endCoalescing();
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    ASSERT_NE(work->exception(), nullptr);
    EXPECT_TRUE(says(error_of([&] { std::rethrow_exception(work->exception()); }), kAborted));
    EXPECT_TRUE(says(error_of([&] { work->wait(); }), kAborted));
    EXPECT_TRUE(work->getFuture()->hasError());
  });
}

}  // namespace
}  // namespace shardwise::comm::work_test
