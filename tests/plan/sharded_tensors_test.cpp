// The ranges of the tensors of a block that ranks hold.
#include "shardwise/plan/sharded_tensors.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace shardwise::plan::sharded_tensors_test {
namespace {

using base::Range;
using Ranges = std::vector<std::vector<Range>>;

Workload workload_of(const std::string& preset, int tp, Parallelism parallelism = Parallelism::tp_sp) {
  Workload workload;
  workload.config = config::preset(preset);
  workload.tp = tp;
  workload.parallelism = parallelism;
  workload.sequence_length = 64;
  workload.batch_size = 3;
  return workload;
}

std::map<std::string, ShardedTensor> by_name(const Workload& workload) {
  std::map<std::string, ShardedTensor> tensors;
  for (const ShardedTensor& tensor : sharded_tensors(workload)) tensors[tensor.name] = tensor;
  return tensors;
}

// Llama 3.1 8B: 32 query heads and 8 KV heads of 128 features; rows of q, k and v are 4096, 1024 and 1024.
TEST(ShardedTensors, AreRowsThenColumnsOfABlock) {
  auto t = by_name(workload_of("llama-3.1-8b", 2));
  const auto expect = [&](const char* name, const std::vector<int64_t>& shape, int64_t dim,
                          const Ranges& ranges) {
    EXPECT_EQ(t[name].shape, shape) << name;
    EXPECT_EQ(t[name].ranges, ranges) << name;
    EXPECT_TRUE(ranges.empty() || t[name].dim == dim) << name;
  };
  expect("qkv_proj", {6144, 4096}, 0,
         {{{0, 2048}, {4096, 4608}, {5120, 5632}}, {{2048, 4096}, {4608, 5120}, {5632, 6144}}});
  expect("o_proj", {4096, 4096}, 1, {{{0, 2048}}, {{2048, 4096}}});
  expect("gate_up_proj", {28672, 4096}, 0, {{{0, 7168}, {14336, 21504}}, {{7168, 14336}, {21504, 28672}}});
  expect("down_proj", {4096, 14336}, 1, {{{0, 7168}}, {{7168, 14336}}});
  expect("lm_head", {128256, 4096}, 0, {{{0, 64128}}, {{64128, 128256}}});
  expect("input_layernorm", {4096}, 0, {});
  expect("residual stream", {64, 3, 4096}, 0, {{{0, 32}}, {{32, 64}}});
  expect("attention output", {64, 3, 4096}, 2, {{{0, 2048}}, {{2048, 4096}}});
  expect("logits", {64, 3, 128256}, 2, {{{0, 64128}}, {{64128, 128256}}});
  EXPECT_TRUE(t["o_proj"].is_weight);
  EXPECT_FALSE(t["logits"].is_weight);
  EXPECT_TRUE(by_name(workload_of("llama-3.1-8b", 2, Parallelism::tp))["residual stream"].ranges.empty());
}

TEST(ShardedTensors, CoverEveryIndexOnceButKvHeadsThatRanksShare) {
  for (const std::string& preset : config::preset_names()) {
    for (const int tp : {1, 2, 3, 4, 8}) {
      if (tp > config::preset(preset).num_attention_heads) continue;
      for (const ShardedTensor& tensor : sharded_tensors(workload_of(preset, tp))) {
        if (tensor.ranges.empty()) continue;
        ASSERT_EQ(std::ssize(tensor.ranges), tp);
        std::vector<int> held(size_t(tensor.shape.at(size_t(tensor.dim))));
        for (const auto& of_rank : tensor.ranges)
          for (const Range& range : of_rank)
            for (int64_t i = range.begin; i < range.end; ++i) ++held.at(size_t(i));
        const auto [least, most] = std::ranges::minmax(held);
        EXPECT_GE(least, 1) << preset << tp << tensor.name;
        const bool has_kv_heads = tensor.name.starts_with("qkv_proj") || tensor.name == "q|k|v";
        EXPECT_TRUE(most == 1 || has_kv_heads) << preset << " " << tp << " " << tensor.name;
      }
    }
  }
}

TEST(ShardedTensors, RefusesWhatAWorkloadRefuses) {
  EXPECT_THROW(sharded_tensors(workload_of("gpt2", 13)), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::sharded_tensors_test
