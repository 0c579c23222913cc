// Ranks that call different collectives: every such pair is an error on all ranks that names both calls.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "tests/comm/threads.h"
#include "tests/comm/values.h"

namespace shardwise::comm::mismatch_test {
namespace {

using namespace shardwise::testing;
using base::Split;

using Call = std::function<void(const Group&)>;

at::Tensor some(int64_t numel, at::ScalarType dtype = at::kFloat) {
  return value({numel}, 0, dtype);
}

Call all_reduce(int64_t numel, at::ScalarType dtype = at::kFloat, Reduce reduce = Reduce::sum) {
  return [=](const Group& group) { group.all_reduce(some(numel, dtype), reduce); };
}
Call all_gather(int64_t numel, int64_t granule = 1, int64_t dim = 0) {
  return [=](const Group& group) {
    const Split split = Split::even("x", numel, group.size(), granule);
    const int64_t local = split.range(group.rank()).size();
    group.all_gather(dim == 0 ? value({local, numel}, 0, at::kFloat) : value({numel, local}, 0, at::kFloat),
                     split, dim);
  };
}
Call share_shard(int64_t numel) {
  return [=](const Group& group) {
    const Split split = Split::even("x", numel, group.size());
    const auto shards = group.share_shard(some(split.range(group.rank()).size()), split);
    for (int peer = 0; peer < group.size(); ++peer) shards->get(peer);
  };
}
Call reduce_scatter(int64_t numel, int64_t granule = 1) {
  return [=](const Group& group) {
    group.reduce_scatter(some(numel), Split::even("x", numel, group.size(), granule));
  };
}
Call reduce_scatter_chunked(int64_t numel) {
  return [=](const Group& group) {
    const Split split = Split::even("x", numel, group.size());
    at::Tensor x = group.empty({numel}, at::kFloat).zero_(),
               out = at::empty({split.range(group.rank()).size()}, at::kFloat);
    const auto sum = group.reduce_scatter_chunked(x, split);
    for (int i = 0; i < group.size(); ++i) sum->chunk_ready(i);
    sum->wait(out);
  };
}
Call fused_all_reduce(int64_t numel) {
  return [=](const Group& group) { group.fused_all_reduce(some(numel), [](PeerBuffers) {}); };
}
Call fused_reduce_scatter(int64_t numel) {
  return [=](const Group& group) {
    group.fused_reduce_scatter(some(numel), Split::even("x", numel, group.size()), [](PeerBuffers) {});
  };
}
Call broadcast(int64_t numel, int root) {
  return [=](const Group& group) {
    at::Tensor x = some(numel);
    group.broadcast_(x, root);
  };
}
Call scatter(int64_t numel, int root) {
  return [=](const Group& group) { group.scatter(some(numel), root); };
}
Call gather(int64_t numel, int root) {
  return [=](const Group& group) { group.gather(some(numel), root); };
}
Call gather_bf16(int64_t numel, int root) {
  return [=](const Group& group) { group.gather(some(numel, at::kBFloat16), root); };
}
Call all_to_all(int64_t numel) {
  return [=](const Group& group) { group.all_to_all(some(numel)); };
}
Call barrier() {
  return [](const Group& group) { group.barrier(); };
}

/// Runs `theirs` on rank 1 and `ours` on the others; returns the error of each rank.
std::vector<std::string> run(int ranks, const Call& ours, const Call& theirs) {
  std::vector<std::string> errors{size_t(ranks)};
  on_threads(ranks, [&](int rank, const std::string& job) {
    const Group group = shm::connect(options(job, rank, ranks));
    group.barrier();
    try {
      (rank == 1 ? theirs : ours)(group);
      group.barrier();  // a rank that did not wait for rank 1 gets the error here
      errors[size_t(rank)] = "no error";
    } catch (const base::CommError& error) {
      errors[size_t(rank)] = base::one_line(error);
      EXPECT_EQ(error.where().rank, rank);
    }
  });
  return errors;
}

struct Pair {
  const char* name;
  Call ours, theirs;
  const char* our_words;
  const char* their_words;
};

class Mismatch : public ::testing::TestWithParam<int> {};

TEST_P(Mismatch, IsAnErrorNamingBothSidesOnAllRanks) {
  const Pair pairs[] = {
      {"op", all_reduce(12), reduce_scatter(12), "all_reduce sum float32 [12]",
       "reduce_scatter sum float32 [12]"},
      {"dtype", all_reduce(12), all_reduce(12, at::kBFloat16), "all_reduce sum float32 [12]",
       "all_reduce sum bfloat16 [12]"},
      {"numel", all_reduce(12), all_reduce(5000), "all_reduce sum float32 [12]",
       "all_reduce sum float32 [5000]"},
      {"reduction", all_reduce(12), all_reduce(12, at::kFloat, Reduce::max), "all_reduce sum",
       "all_reduce max"},
      {"product", all_reduce(12, at::kFloat, Reduce::product), all_reduce(12, at::kFloat, Reduce::min),
       "all_reduce product float32 [12]", "all_reduce min float32 [12]"},
      {"average", all_reduce(12, at::kFloat, Reduce::average), all_reduce(12, at::kBool, Reduce::bit_and),
       "all_reduce average float32 [12]", "all_reduce bit_and bool [12]"},
      {"bits", all_reduce(12, at::kShort, Reduce::bit_or), all_reduce(12, at::kChar, Reduce::bit_xor),
       "all_reduce bit_or int16 [12]", "all_reduce bit_xor int8 [12]"},
      {"gather split", all_gather(24, 1), all_gather(24, 5), "all_gather float32 [576] split",
       "all_gather float32 [576] split"},
      {"gather dim", all_gather(24, 1, 0), all_gather(24, 1, 1), "all_gather float32 [576]",
       "all_gather float32 [576] dim 1"},
      {"scatter split", reduce_scatter(24, 1), reduce_scatter(24, 5), "reduce_scatter sum float32 [24] split",
       "reduce_scatter sum float32 [24] split"},
      {"root", broadcast(12, 0), broadcast(12, 1), "broadcast float32 [12] root 0",
       "broadcast float32 [12] root 1"},
      {"scatter root", scatter(12, 0), scatter(12, 1), "scatter float32 root 0", "scatter float32 root 1"},
      {"gather", gather(1, 0), all_to_all(12), "gather float32", "all_to_all float32"},
      {"share_shard", share_shard(12), all_gather(12), "share_shard float32 [12]",
       "all_gather float32 [144]"},
      {"share_shard size", share_shard(12), share_shard(24), "share_shard float32 [12]",
       "share_shard float32 [24]"},
      {"chunked", reduce_scatter_chunked(12), barrier(), "reduce_scatter sum float32 [",
       "rank 1 runs barrier"},
      {"barrier", all_to_all(12), barrier(), "all_to_all float32", "rank 1 runs barrier"},
      {"missed", share_shard(12), [](const Group&) {}, "share_shard float32 [12]", "rank 1 runs barrier"},
  };
  for (const Pair& pair : pairs) {
    for (const std::string& error : run(GetParam(), pair.ours, pair.theirs)) {
      EXPECT_NE(error.find(pair.our_words), std::string::npos) << pair.name << ": " << error;
      EXPECT_NE(error.find(pair.their_words), std::string::npos) << pair.name << ": " << error;
      EXPECT_NE(error.find("rank 1 runs"), std::string::npos) << pair.name << ": " << error;
      EXPECT_EQ(error.find('\n'), std::string::npos);
    }
  }
}

/// A collective and its text in errors.
struct Named {
  Call call;
  std::string words;
};

/// Returns every op, in variants that differ in dtype, size, reduction, root, dim or split. Sizes that only
/// sender and receiver know are tested in variable_size_test.cpp.
std::vector<Named> all_calls() {
  return {{broadcast(12, 0), "broadcast float32 [12] root 0"},
          {broadcast(12, 1), "broadcast float32 [12] root 1"},
          {broadcast(24, 0), "broadcast float32 [24] root 0"},
          {all_gather(12), "all_gather float32 [144] split"},
          {all_gather(24), "all_gather float32 [576] split"},
          {all_gather(24, 5), "all_gather float32 [576] split"},
          {all_gather(24, 1, 1), "all_gather float32 [576] dim 1"},
          {all_reduce(12), "all_reduce sum float32 [12]"},
          {all_reduce(5000), "all_reduce sum float32 [5000]"},
          {all_reduce(12, at::kBFloat16), "all_reduce sum bfloat16 [12]"},
          {all_reduce(12, at::kFloat, Reduce::max), "all_reduce max float32 [12]"},
          {reduce_scatter(12), "reduce_scatter sum float32 [12] split"},
          {reduce_scatter(24), "reduce_scatter sum float32 [24] split"},
          {reduce_scatter(24, 5), "reduce_scatter sum float32 [24] split"},
          {scatter(12, 0), "scatter float32 root 0"},
          {scatter(12, 1), "scatter float32 root 1"},
          {gather(4, 0), "gather float32 root 0"},
          {gather(4, 1), "gather float32 root 1"},
          {gather_bf16(4, 0), "gather bfloat16 root 0"},
          {all_to_all(12), "all_to_all float32"},
          {share_shard(12), "share_shard float32 [12] split"},
          {share_shard(24), "share_shard float32 [24] split"},
          {fused_all_reduce(12), "fused_all_reduce float32 [12]"},
          {fused_all_reduce(5000), "fused_all_reduce float32 [5000]"},
          {fused_reduce_scatter(12), "fused_reduce_scatter float32 [12] split"},
          {barrier(), "barrier"}};
}

// Runs each pair in both orders: rank 0 calls one collective, rank 1 the other.
TEST(EveryMismatch, IsAnErrorNamingBothSidesOnAllRanks) {
  const std::vector<Named> calls = all_calls();
  for (size_t ours = 0; ours < calls.size(); ++ours) {
    for (size_t theirs = 0; theirs < calls.size(); ++theirs) {
      if (ours == theirs) continue;
      for (const std::string& error : run(2, calls[ours].call, calls[theirs].call)) {
        EXPECT_NE(error.find("rank 0 runs " + calls[ours].words), std::string::npos)
            << theirs << ": " << error;
        EXPECT_NE(error.find("rank 1 runs " + calls[theirs].words), std::string::npos)
            << ours << ": " << error;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Mismatch, ::testing::Values(2, 3));

}  // namespace
}  // namespace shardwise::comm::mismatch_test
