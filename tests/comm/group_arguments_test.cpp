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
      {"all_gather",
       [](const Group& group, at::Tensor x) {
         group.all_gather_out_async(at::full({8}, 0, x.dtype()), x, shards)->wait();
       }},
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

TEST(GroupArguments, ReceivesNeedElementsOfTheirOwnMemory) {
  on_groups([](const TestGroup& at) {
    at::Tensor x = at::full({1}, 7.f).expand({4});
    EXPECT_EQ(value_error_of([&] { at.group.recv_(x, 1 - at.group.rank()); }),
              "recv: needs a tensor whose elements share no memory; got [4] with strides [0]; receive into a "
              "tensor of its own memory, such as clone()'s");
  });
}

TEST(GroupArguments, ReduceScatterNeedsAnOutputOfItsRows) {
  on_groups([](const TestGroup& at) {
    at::Tensor out = at::full({3}, -1.f);
    EXPECT_EQ(value_error_of(
                  [&] { at.group.reduce_scatter_out(out, at::full({4}, 1.f), Split::even("x", 4, kRanks)); }),
              "reduce_scatter: dim 0 of a shard must be rank " + std::to_string(at.group.rank()) +
                  "'s range of split x, 2; got [3]");
    EXPECT_TRUE(equals(out, at::full({3}, -1.f)));
  });
}

TEST(GroupArguments, AChunkedReduceScatterNeedsAPeer) {
  const at::Tensor x = at::full({3}, 1.f);
  EXPECT_EQ(value_error_of([&] { Group().reduce_scatter_chunked(x, Split::even("x", 3, 1)); }),
            "reduce_scatter_chunked: needs two ranks or more; got 1");
}

TEST(GroupArguments, RanksOutsideTheGroupHaveNoShardAndNoChunk) {
  static const Split split = Split::even("x", 3, kRanks);
  const auto check = [](const Group& group) {
    const at::Tensor shard = at::full({split.range(group.rank()).size()}, 1.f);
    const auto chunks = group.all_gather_chunked(shard, split);
    for (const int rank : {-1, kRanks}) {
      EXPECT_EQ(value_error_of([&] { chunks->wait_chunk(rank); }),
                "ChunkedAllGather::wait_chunk: rank must be in [0, 2); got " + std::to_string(rank));
    }
    for (int rank = 0; rank < kRanks; ++rank) chunks->wait_chunk(rank);
    EXPECT_TRUE(equals(chunks->output(), at::full({3}, 1.f)));
    if (!group.has_symmetric_heap()) return;
    const auto shards = group.share_shard(shard, split);
    for (const int rank : {-1, kRanks}) {
      EXPECT_EQ(value_error_of([&] { shards->get(rank); }),
                "PeerShards::get: rank must be in [0, 2); got " + std::to_string(rank));
    }
    EXPECT_EQ(shards->get(0).numel(), 2);
  };
  on_groups([&](const TestGroup& at) {
    check(at.group);
    check(at.group.without_symmetric_heap());
    check(Group(c10::intrusive_ptr<c10d::Backend>(at.backend)));
  });
  const at::Tensor x = at::full({3}, 1.f);
  const Split one = Split::even("x", 3, 1);
  EXPECT_NE(value_error_of([&] { Group().share_shard(x, one)->get(1); }), "no error");
  EXPECT_NE(value_error_of([&] { Group().all_gather_chunked(x, one)->wait_chunk(1); }), "no error");
}

/// Expects every wrong call of a chunked reduce_scatter to be refused, and the right ones to give the sum.
void check_chunked_sum(const Group& group) {
  static const Split split = Split::even("x", 5, kRanks);
  const int64_t rows = split.range(group.rank()).size();
  const at::Tensor x = group.empty({5, 2}, at::kFloat).fill_(group.rank() + 1);
  const auto sum = group.reduce_scatter_chunked(x, split);
  at::Tensor out = at::full({rows, 2}, -1.f);
  const auto refuses = [](const std::function<void()>& call, const std::string& text) {
    EXPECT_EQ(value_error_of(call), "reduce_scatter_chunked: " + text);
  };
  const std::string order = "chunks must be reported once each, in ascending order; got chunk ";
  refuses([&] { sum->chunk_ready(-1); }, order + "-1 after 0 of 2");
  refuses([&] { sum->chunk_ready(1); }, order + "1 after 0 of 2");
  sum->chunk_ready(0);
  refuses([&] { sum->chunk_ready(0); }, order + "0 after 1 of 2");
  refuses([&] { sum->wait(out); }, "needs one wait, after all chunks; got a wait after 1 of 2 chunks");
  sum->chunk_ready(1);
  refuses([&] { sum->chunk_ready(2); }, order + "2 after 2 of 2");
  at::Tensor wrong[] = {at::full({rows - 1, 2}, 1.f), at::full({rows, 3}, 1.f),
                        at::full({rows, 2}, 1, at::kDouble), at::full({rows, 4}, 1.f).slice(1, 0, 4, 2)};
  for (at::Tensor& bad : wrong) {
    const at::Tensor before = bad.clone();
    EXPECT_NE(value_error_of([&] { sum->wait(bad); }), "no error") << bad.sizes();
    EXPECT_TRUE(at::equal(bad, before));
  }
  sum->wait(out);
  EXPECT_TRUE(equals(out, at::full({rows, 2}, 3.f)));
  refuses([&] { sum->wait(out); }, "needs one wait, after all chunks; got another wait after 2 of 2 chunks");
  group.barrier();
}

TEST(GroupArguments, ChunkedReduceScatterChecksChunksAndOutput) {
  on_groups([](const TestGroup& at) {
    check_chunked_sum(at.group);
    check_chunked_sum(at.group.without_symmetric_heap());
    check_chunked_sum(Group(c10::intrusive_ptr<c10d::Backend>(at.backend)));
  });
}

}  // namespace
}  // namespace shardwise::comm::group_arguments_test
