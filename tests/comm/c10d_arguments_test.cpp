// Arguments that c10d's collectives refuse on every rank, before anything is sent.
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tests/comm/backends.h"
#include "tests/comm/symmetric_heap.h"

namespace shardwise::comm::c10d_arguments_test {
namespace {

using namespace shardwise::testing;
using shm::Backend;

constexpr int kRanks = 2;

/// Expects `call` to be refused with this text. The first rank that refuses it aborts the group.
void expect_refused(const std::string& text, const std::function<void(Backend&)>& call) {
  on_backends(kRanks,
              [&](Backend& backend, int) { EXPECT_EQ(value_error_of([&] { call(backend); }), text); });
}

TEST(C10dArguments, ReduceScatterNeedsPiecesOfTheOutputsShape) {
  expect_refused(
      "reduce_scatter: output and this rank's input must have the same shape; got [3, 2] and [2, 3]",
      [](Backend& backend) {
        Tensors output = {at::full({3, 2}, 0.f)};
        std::vector<Tensors> pieces = {Tensors(kRanks, at::full({2, 3}, 1.f))};
        backend.reduce_scatter(output, pieces, {});
      });
}

TEST(C10dArguments, AllGatherIntoOneTensorNeedsAContiguousOne) {
  expect_refused("allgather_into_tensor: output must be contiguous; got strides [2]", [](Backend& backend) {
    at::Tensor shard = at::full({4}, 1.f), full = at::full({16}, 0.f).slice(0, 0, at::nullopt, 2);
    backend._allgather_base(full, shard, {});
  });
}

TEST(C10dArguments, SparseTensorsAreRefusedAmongPiecesAndInBaseCalls) {
  const at::Tensor dense = at::full({4}, 1.f), sparse = dense.to_sparse();
  const std::string rule = ": accepts dense tensors on the CPU; got a Sparse tensor on cpu";
  expect_refused("allgather" + rule, [&](Backend& backend) {
    std::vector<Tensors> pieces = {{sparse, sparse}};
    Tensors shard = {dense};
    backend.allgather(pieces, shard, {});
  });
  expect_refused("reduce_scatter_tensor" + rule, [&](Backend& backend) {
    at::Tensor input = sparse, output = at::full({2}, 0.f);
    backend._reduce_scatter_base(output, input, {});
  });
}

}  // namespace
}  // namespace shardwise::comm::c10d_arguments_test
