// Two threads in one group: the second call is an error that names both, and the first one completes right.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "shardwise/base/error.h"
#include "tests/comm/collective_calls.h"
#include "tests/comm/symmetric_heap.h"
#include "tests/comm/threads.h"

namespace shardwise::comm::concurrent_calls_test {
namespace {

using namespace shardwise::testing;

struct NamedCall {
  std::string name;
  std::function<void(const TestGroup&)> call;
};

at::Tensor ones(int64_t numel) {
  return at::full({numel}, 1.f);
}

std::vector<NamedCall> group_calls() {
  static const auto split = base::Split::even("x", 30, 2);
  const auto shard = [](const TestGroup& at) { return ones(split.range(at.group.rank()).size()); };
  const auto no_kernel = [](PeerBuffers) { ADD_FAILURE() << "called"; };
  return {
      {"all_reduce", [](const TestGroup& at) { at.group.all_reduce(ones(5)); }},
      {"all_reduce",
       [](const TestGroup& at) { at.group.all_reduce_async_(at.group.empty({5000}, at::kFloat)); }},
      {"all_gather", [=](const TestGroup& at) { at.group.all_gather(shard(at), split); }},
      {"all_gather", [=](const TestGroup& at) { at.group.share_shard(shard(at), split); }},
      {"reduce_scatter", [](const TestGroup& at) { at.group.reduce_scatter(ones(30), split); }},
      {"reduce_scatter",
       [](const TestGroup& at) { at.group.reduce_scatter_chunked(at.group.empty({30}, at::kFloat), split); }},
      {"fused_all_reduce", [=](const TestGroup& at) { at.group.fused_all_reduce(ones(30), no_kernel); }},
      {"broadcast",
       [](const TestGroup& at) {
         at::Tensor x = ones(3);
         at.group.broadcast_(x, 0);
       }},
      {"scatter", [](const TestGroup& at) { at.group.scatter(ones(4), 0); }},
      {"gather", [](const TestGroup& at) { at.group.gather(ones(4), 0); }},
      {"all_to_all", [](const TestGroup& at) { at.group.all_to_all(ones(4)); }},
      {"barrier", [](const TestGroup& at) { at.group.barrier(); }},
      {"send", [](const TestGroup& at) { at.group.send(ones(4), 1); }},
      {"recv",
       [](const TestGroup& at) {
         at::Tensor x = ones(3);
         at.group.recv_(x, 1);
       }},
  };
}

std::vector<NamedCall> c10d_calls() {
  return {
      {"allreduce",
       [](const TestGroup& at) {
         Tensors x = {ones(5)};
         at.backend->allreduce(x, {.timeout = std::chrono::milliseconds(1)});
       }},
      {"barrier", [](const TestGroup& at) { at.backend->barrier({}); }},
      {"send",
       [](const TestGroup& at) {
         Tensors x = {ones(5)};
         at.backend->send(x, 1, 0);
       }},
      {"recv",
       [](const TestGroup& at) {
         Tensors x = {ones(5)};
         at.backend->recv(x, 1, 0);
       }},
      {"monitored_barrier", [](const TestGroup& at) { at.backend->monitoredBarrier({}, true); }},
  };
}

/// On rank 0 of two, runs `second` on another thread while `first` waits for rank 1. Rank 1 runs `first` when
/// the error of `second` is known. Returns the error.
std::string error_next_to(const NamedCall& first, const NamedCall& second) {
  std::atomic<bool> refused = false;
  std::string error;
  on_threads(2, [&](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, 2));
    std::thread other([&] {
      if (rank == 1) return;
      while (at.backend->getSequenceNumberForGroup() == 0) std::this_thread::yield();
      error = value_error_of([&] { second.call(at); });
      refused = true;
    });
    while (rank == 1 && !refused) std::this_thread::yield();
    first.call(at);
    other.join();
    EXPECT_EQ(at.group.all_reduce(at::full({1}, float(rank + 1))).item<float>(), 3);
    EXPECT_EQ(at.backend->getSequenceNumberForGroup(), 2u);
  });
  return error;
}

/// On rank 0 of two, runs `second` on another thread while a barrier waits for rank 1, which calls it when
/// rank 0 has set `is_done`.
void run_next_to_barrier(const TestGroup& at, std::atomic<bool>& is_done,
                         const std::function<void()>& second) {
  const uint64_t before = at.backend->getSequenceNumberForGroup();
  std::thread other([&] {
    if (at.group.rank() == 1) return;
    while (at.backend->getSequenceNumberForGroup() == before) std::this_thread::yield();
    second();
    is_done = true;
  });
  while (at.group.rank() == 1 && !is_done) std::this_thread::yield();
  at.group.barrier();
  other.join();
}

std::string refusal(const std::string& second, const std::string& first) {
  return second + ": a group runs one call at a time; got it while " + first +
         " of this rank is in flight on another thread; use a group per thread";
}

NamedCall checked_all_reduce(int64_t numel) {
  return {"all_reduce", [numel](const TestGroup& at) {
            at::Tensor x = at.group.empty({numel}, at::kFloat).fill_(at.group.rank() + 1);
            at.group.all_reduce_(x);
            EXPECT_EQ(x.sum().item<float>(), 3.f * float(numel));
          }};
}

TEST(SecondThread, GetsAnErrorThatNamesBothCalls) {
  std::vector<NamedCall> calls = group_calls();
  for (const NamedCall& call : c10d_calls()) calls.push_back(call);
  for (const NamedCall& second : calls)
    EXPECT_EQ(error_next_to(checked_all_reduce(1000), second), refusal(second.name, "all_reduce"));
}

TEST(SecondThread, DisturbsNoFirstCall) {
  const NamedCall second = checked_all_reduce(5);
  for (const int64_t numel : {1, 5000, 500'000})
    EXPECT_EQ(error_next_to(checked_all_reduce(numel), second), refusal("all_reduce", "all_reduce"));
  const NamedCall torch = {"allreduce", [](const TestGroup& at) {
                             Tensors x = {at::full({7}, float(at.group.rank() + 1))};
                             at.backend->startCoalescing();
                             at.backend->allreduce(x, {});
                             EXPECT_TRUE(at.backend->endCoalescing()->wait());
                             EXPECT_EQ(x[0].sum().item<float>(), 21);
                           }};
  for (const NamedCall& call : c10d_calls())
    EXPECT_EQ(error_next_to(torch, call), refusal(call.name, "allreduce"));
}

TEST(SecondThread, GetsNoHandleOfACallInFlight) {
  std::atomic<bool> refused = false;
  on_threads(2, [&](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, 2));
    Tensors message = {ones(3)};
    const auto receive = rank == 0 ? at.backend->recv(message, 1, 0) : nullptr;
    run_next_to_barrier(at, refused, [&] {
      EXPECT_EQ(value_error_of([&] { receive->isCompleted(); }), refusal("recv", "barrier"));
      EXPECT_EQ(value_error_of([&] { receive->wait(kNoTimeout); }), refusal("recv", "barrier"));
    });
    if (rank == 1) at.group.send(at::full({3}, 5.f), 0);
    if (rank == 0) {
      EXPECT_TRUE(receive->wait(kNoTimeout));
      EXPECT_EQ(message[0].sum().item<float>(), 15);
    }
  });
}

TEST(SecondThread, MayRepeatARefusedWait) {
  std::atomic<bool> refused = false;
  on_threads(2, [&](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, 2));
    const at::Tensor x = at.group.empty({5000}, at::kFloat).fill_(rank + 1);
    const std::unique_ptr<Work> work = at.group.all_reduce_async_(x);
    run_next_to_barrier(at, refused, [&] {
      EXPECT_EQ(value_error_of([&] { work->wait(); }), refusal("all_reduce", "barrier"));
    });
    work->wait();
    EXPECT_EQ(x.sum().item<float>(), 15'000);
  });
}

// Only backends of c10d that are not ours gather in chunks.
TEST(SecondThread, MayRepeatARefusedWaitForAChunk) {
  int waits = 0;
  ChunkedAllGather::Works chunks(2);
  chunks[1] = std::make_unique<CallWork>([&] { TORCH_CHECK_VALUE(++waits > 1, "refused"); });
  ChunkedAllGather gathered(ones(4), /*rank=*/0, std::move(chunks));
  EXPECT_EQ(value_error_of([&] { gathered.wait_chunk(1); }), "refused");
  for (int i = 0; i < 2; ++i) gathered.wait_chunk(1);
  EXPECT_EQ(waits, 2);
}

// The checks that abort the group belong to the call, too.
TEST(SecondThread, DoesNotAbortTheCallInFlightByWrongArguments) {
  Tensors x = {ones(2)}, few = {ones(3)};
  std::vector<Tensors> no_lists, few_lists = {few};
  std::vector<int64_t> rows = {1, 2}, none;
  const NamedCall calls[] = {
      {"allgather", [&](const TestGroup& at) { at.backend->allgather(few_lists, x, {}); }},
      {"allgather_coalesced",
       [&](const TestGroup& at) {
         std::vector<Tensors> outputs = {few, few};
         at.backend->allgather_coalesced(outputs, x, {});
       }},
      {"reduce_scatter", [&](const TestGroup& at) { at.backend->reduce_scatter(x, few_lists, {}); }},
      {"scatter", [&](const TestGroup& at) { at.backend->scatter(x, no_lists, {}); }},
      {"gather", [&](const TestGroup& at) { at.backend->gather(no_lists, x, {}); }},
      {"alltoall", [&](const TestGroup& at) { at.backend->alltoall(few, x, {}); }},
      {"alltoall_base",
       [&](const TestGroup& at) { at.backend->alltoall_base(x[0], few[0], none, rows, {}); }},
  };
  for (const NamedCall& call : calls)
    EXPECT_EQ(error_next_to(checked_all_reduce(1000), call), refusal(call.name, "all_reduce"));
}

// Its output is more than any address space holds.
TEST(SecondThread, DoesNotAbortTheCallInFlightByItsLackOfMemory) {
  const at::Tensor huge = ones(1).expand({int64_t{1} << 48});
  const auto split = base::Split::even("x", huge.numel(), 2);
  const NamedCall call = {"reduce_scatter",
                          [&](const TestGroup& at) { at.group.reduce_scatter(huge, split); }};
  EXPECT_EQ(error_next_to(checked_all_reduce(1000), call), refusal("reduce_scatter", "all_reduce"));
}

TEST(SecondThread, GetsNoSignalsOfACallInFlight) {
  std::atomic<bool> refused = false;
  on_registered(2, [&](comm::shm::Backend& backend, int rank) {
    const SymmetricHandle handle = rendezvous_over(symmetric(10, 0));
    const uint64_t before = backend.getSequenceNumberForGroup();
    std::thread other([&] {
      if (rank == 1) return;
      while (backend.getSequenceNumberForGroup() == before) std::this_thread::yield();
      EXPECT_EQ(value_error_of([&] { handle->put_signal(1, 0, 0); }), refusal("put_signal", "barrier"));
      EXPECT_EQ(value_error_of([&] { handle->wait_signal(1, 0, 0); }), refusal("wait_signal", "barrier"));
      EXPECT_EQ(value_error_of([&] { handle->barrier(0, 0); }), refusal("symmetric_barrier", "barrier"));
      refused = true;
    });
    while (rank == 1 && !refused) std::this_thread::yield();
    backend.barrier({})->wait();
    other.join();
    handle->barrier(0, 0);  // no signal of the refused calls is left
  });
}

// Rank 0 runs half of its calls on each of two threads, and repeats those that are refused.
TEST(TwoThreads, ThatRepeatRefusedCallsCorruptNothing) {
  constexpr int kCalls = 400;
  std::atomic<int> refusals = 0;
  on_threads(2, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 2));
    const auto run = [&](int calls) {
      at::set_num_threads(1);
      for (int done = 0; done < calls;) {
        at::Tensor x = at::full({100}, float(rank + 1));
        try {
          group.all_reduce_(x);
          EXPECT_EQ(x.sum().item<float>(), 300);
          ++done;
        } catch (const c10::ValueError&) {
          EXPECT_EQ(x.sum().item<float>(), 100.f * float(rank + 1));
          ++refusals;
        }
      }
    };
    if (rank == 1) {
      for (int i = 0; i < 8; ++i) {  // both threads of rank 0 have time to call
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        run(kCalls / 8);
      }
      return;
    }
    std::thread other([&] { run(kCalls / 2); });
    run(kCalls / 2);
    other.join();
    EXPECT_EQ(group.counters()[Op::all_reduce].calls, kCalls);
    EXPECT_EQ(group.backend()->sequence(), uint64_t(kCalls));
  });
  EXPECT_GT(refusals, 0);
}

TEST(TwoThreads, MayUseAGroupInTurn) {
  on_threads(2, [](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, 2));
    for (int i = 0; i < 20; ++i) {
      std::thread([&] {
        EXPECT_EQ(group.all_reduce(at::full({1}, float(rank + 1))).item<float>(), 3);
      }).join();
      EXPECT_EQ(group.all_reduce(at::full({1}, float(rank + 1))).item<float>(), 3);
    }
  });
}

}  // namespace
}  // namespace shardwise::comm::concurrent_calls_test
