// The shared-memory backend through c10d's interface: every operation that it implements.
#include "shardwise/comm/shm/backend.h"

#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tests/comm/backends.h"
#include "tests/comm/collective_calls.h"
#include "tests/comm/values.h"
#include "tests/support/error_text.h"

namespace shardwise::comm::shm::backend_test {
namespace {

using namespace shardwise::testing;

constexpr int kRanks = 3;

void on_backends(const BackendBody& body) {
  shardwise::testing::on_backends(kRanks, body);
}

at::Tensor of(int64_t numel, int rank) {
  return value({numel}, rank, at::kFloat);
}
at::Tensor sum(int64_t numel) {
  return reduced({numel}, kRanks, Reduce::sum);
}

TEST(Backend, HasNameRankAndSize) {
  on_backends([](Backend& backend, int rank) {
    EXPECT_EQ(backend.getBackendName(), "shardwise");
    EXPECT_EQ(backend.getRank(), rank);
    EXPECT_EQ(backend.getSize(), kRanks);
  });
}

TEST(Backend, WorkAndFutureAreCompleteWhenTheCallReturns) {
  on_backends([](Backend& backend, int rank) {
    Tensors x = {of(5, rank)};
    const auto work = backend.allreduce(x, {});
    EXPECT_TRUE(work->isCompleted() && work->isSuccess() && work->wait());
    EXPECT_TRUE(equals(work->result().at(0), sum(5)));
    const auto future = work->getFuture();
    ASSERT_TRUE(future->completed());
    EXPECT_TRUE(equals(future->value().toTensorVector().at(0), sum(5)));
    EXPECT_EQ(backend.getSequenceNumberForGroup(), 1u);
  });
}

using RedOp = c10d::ReduceOp::RedOpType;

/// Returns true if both variants of allreduce and of reduce_scatter give `reduced`.
bool reduces(Backend& backend, int rank, RedOp op, Reduce reduce, at::ScalarType dtype, int64_t numel) {
  const int64_t ranks = backend.getSize();
  c10d::AllreduceOptions one;
  c10d::AllreduceCoalescedOptions many;
  c10d::ReduceScatterOptions scatter;
  one.reduceOp = many.reduceOp = scatter.reduceOp = op;
  at::Tensor full = value({ranks * numel}, rank, dtype), even = at::empty({numel}, dtype);
  Tensors x = {full.clone()}, several = {full.clone()}, shard = {at::empty({numel}, dtype)};
  std::vector<Tensors> pieces = {full.chunk(ranks)};
  backend.allreduce(x, one)->wait();
  backend.allreduce_coalesced(several, many)->wait();
  backend._reduce_scatter_base(even, full, scatter)->wait();
  backend.reduce_scatter(shard, pieces, scatter)->wait();
  const at::Tensor expected = reduced({ranks * numel}, int(ranks), reduce, dtype);
  const at::Tensor piece = expected.narrow(0, rank * numel, numel);
  return equals(x[0], expected) && equals(several[0], expected) && equals(even, piece) &&
         equals(shard[0], piece);
}

TEST(Backend, SupportsEveryReductionOfC10d) {
  const std::pair<RedOp, Reduce> operations[] = {
      {RedOp::SUM, Reduce::sum},    {RedOp::AVG, Reduce::average}, {RedOp::PRODUCT, Reduce::product},
      {RedOp::MIN, Reduce::min},    {RedOp::MAX, Reduce::max},     {RedOp::BAND, Reduce::bit_and},
      {RedOp::BOR, Reduce::bit_or}, {RedOp::BXOR, Reduce::bit_xor}};
  const auto body = [&](Backend& backend, int rank) {
    for (const auto& [op, reduce] : operations) {
      for (const at::ScalarType dtype : kDtypes) {
        if (!supports(reduce, dtype)) continue;
        for (const int64_t numel : {5, 3000}) {
          EXPECT_TRUE(reduces(backend, rank, op, reduce, dtype, numel)) << name(reduce) << " " << dtype;
        }
      }
    }
  };
  for (const int ranks : {2, 3}) shardwise::testing::on_backends(ranks, body);
}

/// Returns the error of an allreduce with `op`, or "no error".
std::string reduction_error(Backend& backend, const c10d::ReduceOp& op, at::ScalarType dtype) {
  Tensors x = {value({5}, /*rank=*/0, dtype)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  try {
    backend.allreduce(x, options)->wait();
  } catch (const c10::ValueError& error) {
    return base::without_code(base::one_line(error));
  }
  return "no error";
}

TEST(Backend, NamesUnsupportedReductions) {
  on_backends([](Backend& backend, int) {
    const std::string rule =
        "allreduce: backend shardwise supports SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR; got ";
    EXPECT_EQ(reduction_error(backend, c10d::makeNCCLPreMulSum(2.0), at::kFloat), rule + "PREMUL_SUM");
    EXPECT_EQ(reduction_error(backend, RedOp::UNUSED, at::kFloat), rule + "UNUSED");
    EXPECT_EQ(reduction_error(backend, RedOp::AVG, at::kInt),
              "reduction: average accepts floating-point dtypes; got Int");
    EXPECT_EQ(reduction_error(backend, RedOp::BAND, at::kFloat),
              "reduction: bit_and accepts integers and bool; got Float");
    EXPECT_EQ(reduction_error(backend, RedOp::SUM, at::kFloat), "no error");  // the group still works
    Tensors two = {of(5, 0), of(5, 0)};
    EXPECT_THROW(backend.allreduce(two, {}), c10::ValueError);
  });
}

TEST(Backend, CoalescedCallsReduceEveryTensor) {
  on_backends([](Backend& backend, int rank) {
    Tensors x = {of(5, rank), of(4000, rank), of(0, rank)};
    backend.allreduce_coalesced(x, {})->wait();
    EXPECT_TRUE(equals(x[0], sum(5)) && equals(x[1], sum(4000)));

    Tensors shards = {of(2, rank), of(1000, rank)}, wholes = {at::empty({6}), at::empty({3, 1000})};
    backend.allgather_into_tensor_coalesced(wholes, shards, {});
    for (int peer = 0; peer < kRanks; ++peer) {
      EXPECT_TRUE(equals(wholes[0].narrow(0, 2 * peer, 2), of(2, peer)) &&
                  equals(wholes[1][peer], of(1000, peer)));
    }
    Tensors inputs = {of(6, rank), of(3000, rank)}, outputs = {at::empty({2}), at::empty({1000})};
    backend.reduce_scatter_tensor_coalesced(outputs, inputs, {});
    EXPECT_TRUE(equals(outputs[0], sum(6).narrow(0, 2 * rank, 2)));
    EXPECT_TRUE(equals(outputs[1], sum(3000).narrow(0, 1000 * rank, 1000)));
  });
}

// As torch's context manager leaves it, which does not end the block after an error.
TEST(Backend, ACallThatThrowsEndsTheCoalescedBlock) {
  on_backends([](Backend& backend, int rank) {
    const std::function<void()> wrong_calls[] = {
        [&] {
          Tensors two = {of(5, rank), of(5, rank)};
          backend.allreduce(two, {});
        },
        [&] {
          Tensors x = {of(5, rank)};
          backend.send(x, kRanks, 0);
        },
    };
    for (const auto& wrong_call : wrong_calls) {
      backend.startCoalescing();
      EXPECT_THROW(wrong_call(), c10::ValueError);
      Tensors x = {of(5, rank)};
      backend.allreduce(x, {})->wait();
      EXPECT_EQ(x[0].use_count(), 1);
      EXPECT_THROW(backend.endCoalescing(), c10::ValueError);
    }
  });
}

TEST(Backend, ListCallsAcceptUnevenPieces) {
  on_backends([](Backend& backend, int rank) {
    const int64_t numels[] = {5, 0, 3000};
    Tensors input = {of(numels[rank], rank)};
    std::vector<Tensors> gathered(1), inputs(1);
    for (const int64_t numel : numels) {
      gathered[0].push_back(at::empty({2 * numel}).slice(0, 0, at::nullopt, 2));  // strided outputs
      inputs[0].push_back(of(numel, rank));
    }
    backend.allgather(gathered, input, {})->wait();
    for (int peer = 0; peer < kRanks; ++peer)
      EXPECT_TRUE(equals(gathered[0][size_t(peer)], of(numels[peer], peer)));
    Tensors output = {at::empty({numels[rank]})};
    backend.reduce_scatter(output, inputs, {})->wait();
    EXPECT_TRUE(equals(output[0], sum(numels[rank])));
  });
}

TEST(Backend, BaseCallsAcceptOneTensor) {
  on_backends([](Backend& backend, int rank) {
    at::Tensor shard = of(7, rank), full = at::empty({21});
    backend._allgather_base(full, shard, {})->wait();
    for (int peer = 0; peer < kRanks; ++peer) EXPECT_TRUE(equals(full.narrow(0, 7 * peer, 7), of(7, peer)));
    at::Tensor input = of(21, rank), output = at::empty({7});
    backend._reduce_scatter_base(output, input, {})->wait();
    EXPECT_TRUE(equals(output, sum(21).narrow(0, 7 * rank, 7)));
    EXPECT_THROW(backend._allgather_base(shard, shard, {}), c10::ValueError);
    EXPECT_THROW(backend._reduce_scatter_base(input, input, {}), c10::ValueError);
  });
}

// c10d's callers may overwrite an input as soon as the call returns, also one in the symmetric heap.
TEST(Backend, InputsInTheSymmetricHeapMayBeOverwrittenAfterTheCall) {
  on_backends([](Backend& backend, int rank) {
    at::Tensor input = backend.allocateTensor(9000, at::TensorOptions().dtype(at::kFloat));
    for (int i = 0; i < 20; ++i) {
      input.copy_(of(9000, rank));
      at::Tensor output = at::empty({3000});
      backend._reduce_scatter_base(output, input, {})->wait();
      input.fill_(-1);
      EXPECT_TRUE(equals(output, sum(9000).narrow(0, 3000 * rank, 3000)));
    }
  });
}

TEST(Backend, BroadcastScatterAndGatherHaveARoot) {
  on_backends([](Backend& backend, int rank) {
    Tensors x = {of(10, rank)};
    backend.broadcast(x, {.rootRank = 2})->wait();
    EXPECT_TRUE(equals(x[0], of(10, 2)));
    std::vector<Tensors> pieces, gathered;
    if (rank == 1) {
      pieces = {{of(4, 10), of(4, 11), of(4, 12)}};
      gathered = {{at::empty({4}), at::empty({4}), at::empty({4})}};
    }
    Tensors shard = {at::empty({4})};
    backend.scatter(shard, pieces, {.rootRank = 1})->wait();
    EXPECT_TRUE(equals(shard[0], of(4, 10 + rank)));
    backend.gather(gathered, shard, {.rootRank = 1})->wait();
    for (int peer = 0; rank == 1 && peer < kRanks; ++peer) {
      EXPECT_TRUE(equals(gathered[0][size_t(peer)], of(4, 10 + peer)));
    }
  });
}

// The other ranks already wait for the root when it detects the error.
TEST(Backend, ErrorsThatOnlyTheRootDetectsFailOnAllRanks) {
  const auto scatter = [](Backend& backend, std::vector<Tensors> pieces) {
    Tensors shard = {at::empty({4})};
    backend.scatter(shard, pieces, {.rootRank = 1})->wait();
  };
  const auto gather = [](Backend& backend, std::vector<Tensors> pieces) {
    Tensors shard = {at::empty({4})};
    backend.gather(pieces, shard, {.rootRank = 1})->wait();
  };
  struct Case {
    std::function<void(Backend&, std::vector<Tensors>)> call;
    std::vector<Tensors> lists;  // at the root
    const char* error;
  };
  const Case cases[] = {
      {scatter,
       {{at::empty({4})}},
       "scatter: accepts one CPU tensor per rank, all of one dtype; got 1 for 3 ranks"},
      {gather, {}, "gather: accepts one list of tensors at the root and none elsewhere; got 0"},
  };
  for (const Case& c : cases) {
    on_backends([&](Backend& backend, int rank) {
      try {
        c.call(backend, rank == 1 ? c.lists : std::vector<Tensors>());
        ADD_FAILURE() << "no error on rank " << rank << ": " << c.error;
      } catch (const c10::ValueError& error) {
        EXPECT_EQ(rank, 1);
        EXPECT_EQ(base::without_code(base::one_line(error)), c.error);
      } catch (const base::CommError& error) {
        EXPECT_EQ(error.where().peer, 1);
        EXPECT_NE(base::one_line(error).find(std::string("rank 1 aborted: ") + c.error), std::string::npos)
            << base::one_line(error);
      }
    });
  }
}

// Each rank shuts down as soon as its last collective returns, while peers may still be in it.
TEST(Backend, ShutdownLetsPeersCompleteTheLastCollective) {
  for (int round = 0; round < 50; ++round) {
    on_backends([](Backend& backend, int rank) {
      Tensors x = {backend.allocateTensor(9000, at::TensorOptions().dtype(at::kFloat))};
      x[0].copy_(of(9000, rank));
      backend.allreduce(x, {})->wait();
      backend.shutdown();
      EXPECT_TRUE(equals(x[0], sum(9000)));
    });
  }
}

TEST(Backend, CollectivesAfterShutdownFail) {
  on_backends([](Backend& backend, int rank) {
    backend.barrier({})->wait();
    if (rank == 1) backend.shutdown();
    try {
      backend.barrier({})->wait();
      ADD_FAILURE() << "no error on rank " << rank;
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(rank, 1);
      EXPECT_EQ(base::without_code(base::one_line(error)),
                "barrier: the group must not be used after shutdown; got a call");
    } catch (const base::CommError& error) {
      EXPECT_EQ(error.where().peer, 1);
      EXPECT_NE(base::one_line(error).find(") left"), std::string::npos) << base::one_line(error);
    }
    if (rank != 1) return;
    Tensors x = {of(10, rank)};
    EXPECT_PRED2(test::contains, test::error_text<c10::ValueError>([&] { backend.allreduce(x, {}); }),
                 "all_reduce: the group must not be used after shutdown; got a call");
  });
}

TEST(Backend, AllToAllAcceptsListsOrOneTensor) {
  on_backends([](Backend& backend, int rank) {
    Tensors inputs, outputs;
    for (int peer = 0; peer < kRanks; ++peer) {
      inputs.push_back(of(4, 10 * rank + peer));
      outputs.push_back(at::empty({4}));
    }
    backend.alltoall(outputs, inputs, {})->wait();
    for (int peer = 0; peer < kRanks; ++peer)
      EXPECT_TRUE(equals(outputs[size_t(peer)], of(4, 10 * peer + rank)));
    std::vector<int64_t> none, even = {2, 2, 2};
    at::Tensor input = of(6, rank), output = at::empty({6});
    backend.alltoall_base(output, input, even, none, {})->wait();
    for (int peer = 0; peer < kRanks; ++peer) {
      EXPECT_TRUE(equals(output.narrow(0, 2 * peer, 2), of(6, peer).narrow(0, 2 * rank, 2)));
    }
  });
}

TEST(Backend, AllToAllWorksInPlace) {
  on_threads(kRanks, [&](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, kRanks));
    for (at::Tensor x : {at.group.empty({6000}, at::kFloat), at::empty({6000})}) {
      x.copy_(of(6000, rank));
      std::vector<int64_t> none;
      at.backend->alltoall_base(x, x, none, none, {})->wait();
      for (int peer = 0; peer < kRanks; ++peer) {
        EXPECT_TRUE(equals(x.narrow(0, 2000 * peer, 2000), of(6000, peer).narrow(0, 2000 * rank, 2000)));
      }
    }
  });
}

TEST(Backend, ReduceWritesAtTheRootOnly) {
  on_backends([](Backend& backend, int rank) {
    for (const int64_t numel : {0, 5, 5000}) {
      for (int root = 0; root < kRanks; ++root) {
        c10d::ReduceOptions options;
        options.rootRank = root;
        Tensors x = {of(2 * numel, rank).slice(0, 0, at::nullopt, 2)};
        const at::Tensor before = x[0].clone(), expected = sum(2 * numel).slice(0, 0, at::nullopt, 2);
        backend.reduce(x, options)->wait();
        EXPECT_TRUE(equals(x[0], rank == root ? expected : before)) << numel << " to " << root;
      }
    }
    c10d::ReduceOptions out_of_range;
    out_of_range.rootRank = kRanks;
    Tensors x = {of(1, rank)};
    EXPECT_THROW(backend.reduce(x, out_of_range), c10::ValueError);
  });
}

TEST(Backend, UnsupportedOperationsNameBackendAndOperation) {
  on_backends([](Backend& backend, int) {
    Tensors x = {at::empty({1})};
    try {
      backend.allreduce_sparse(x, {});
      FAIL();
    } catch (const c10::Error& error) {
      EXPECT_TRUE(says(error.what(), "Backend shardwise does not support allreduce sparse"));
    }
  });
}

}  // namespace
}  // namespace shardwise::comm::shm::backend_test
