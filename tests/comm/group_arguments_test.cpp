// Arguments that Group's calls refuse on their own rank, before anything is sent: the group goes on.
#include <ATen/ops/complex.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <gtest/gtest.h>

#include "tests/comm/collective_calls.h"
#include "tests/comm/symmetric_heap.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"

namespace shardwise::comm::group_arguments_test {
namespace {

using namespace shardwise::testing;
using base::Split;

constexpr int kRanks = 2;

/// Runs `body` on two ranks, whose group must work afterwards.
void on_groups(const std::function<void(const TestGroup&)>& body) {
  on_threads(kRanks, [&](int rank, const std::string& job) {
    const TestGroup at = connect_test_group(options(job, rank, kRanks));
    body(at);
    EXPECT_EQ(at.group.all_reduce(at::full({1}, float(rank + 1))).item<float>(), 3);
  });
}

struct NamedCall {
  std::string name;
  std::function<void(const Group&, at::Tensor x)> call;
};

/// Returns all calls that send `x` [4] or write to it.
std::vector<NamedCall> calls() {
  static const Split full = Split::even("x", 4, kRanks), shards = Split::even("x", 8, kRanks);
  const auto no_kernel = [](PeerBuffers) { ADD_FAILURE() << "called"; };
  const auto peer = [](const Group& group) { return 1 - group.rank(); };
  return {
      {"broadcast", [](const Group& group, at::Tensor x) { group.broadcast_(x, 0); }},
      {"all_gather", [](const Group& group, at::Tensor x) { group.all_gather(x, shards); }},
      {"all_gather_chunked", [](const Group& group, at::Tensor x) { group.all_gather_chunked(x, shards); }},
      {"all_reduce", [](const Group& group, at::Tensor x) { group.all_reduce(x); }},
      {"all_reduce", [](const Group& group, at::Tensor x) { group.all_reduce_(x); }},
      {"all_reduce_async_", [](const Group& group, at::Tensor x) { group.all_reduce_async_(x); }},
      {"reduce_scatter", [](const Group& group, at::Tensor x) { group.reduce_scatter(x, full); }},
      {"reduce_scatter",
       [](const Group& group, at::Tensor x) {
         at::Tensor out = at::full({2}, 0, x.dtype());
         group.reduce_scatter_out(out, x, full);
       }},
      {"reduce_scatter",
       [](const Group& group, at::Tensor x) {
         group.reduce_scatter_out(x, at::full({8}, 0, x.dtype()), shards);
       }},
      {"reduce_scatter_chunked",
       [](const Group& group, at::Tensor x) { group.reduce_scatter_chunked(x, full); }},
      {"fused_all_reduce", [=](const Group& group, at::Tensor x) { group.fused_all_reduce(x, no_kernel); }},
      {"fused_reduce_scatter",
       [=](const Group& group, at::Tensor x) { group.fused_reduce_scatter(x, full, no_kernel); }},
      {"scatter", [](const Group& group, at::Tensor x) { group.scatter(x, 0); }},
      {"gather", [](const Group& group, at::Tensor x) { group.gather(x, 0); }},
      {"all_to_all", [](const Group& group, at::Tensor x) { group.all_to_all(x); }},
      {"send", [=](const Group& group, at::Tensor x) { group.send(x, peer(group)); }},
      {"recv", [=](const Group& group, at::Tensor x) { group.recv_(x, peer(group)); }},
      {"share_shard", [](const Group& group, at::Tensor x) { group.share_shard(x, shards); }},
  };
}

// Their memory holds the values before conjugation or negation.
TEST(GroupArguments, ViewsThatDoNotHoldTheirValuesAreRefused) {
  const at::Tensor conjugated = at::complex(at::full({4}, 1.f), at::full({4}, 2.f)).conj();
  on_groups([&](const TestGroup& at) {
    for (const NamedCall& call : calls()) {
      const std::string rule = call.name + ": accepts tensors whose memory holds their values; got a ";
      EXPECT_EQ(value_error_of([&] { call.call(at.group, conjugated); }),
                rule + "conjugated view; call resolve_conj() first");
      EXPECT_EQ(value_error_of([&] { call.call(at.group, at::imag(conjugated)); }),
                rule + "negated view; call resolve_neg() first");
    }
  });
}

TEST(GroupArguments, SparseTensorsAreRefused) {
  const at::Tensor sparse = at::full({4}, 1.f).to_sparse();
  on_groups([&](const TestGroup& at) {
    for (const NamedCall& call : calls()) {
      EXPECT_EQ(value_error_of([&] { call.call(at.group, sparse); }),
                call.name + ": accepts dense tensors on cpu; got a Sparse tensor on cpu");
    }
  });
}

}  // namespace
}  // namespace shardwise::comm::group_arguments_test
