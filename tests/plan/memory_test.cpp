// Planned memory against published figures and closed forms; saved_bytes_test.cpp compares it with real runs.
#include "shardwise/plan/memory.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/plan/frozen.h"

namespace shardwise::plan::memory_test {
namespace {

Workload llama(const std::string& preset, int tp = 1, Parallelism parallelism = Parallelism::tp_sp) {
  Workload workload;
  workload.config = config::preset(preset);
  workload.tp = tp;
  workload.parallelism = parallelism;
  workload.sequence_length = 128;
  workload.batch_size = 3;
  workload.element_bytes = 2;
  return workload;
}

/// 6 query and 3 KV heads, nothing divisible by two.
Workload odd(int tp, Parallelism parallelism) {
  Workload workload = llama("tiny", tp, parallelism);
  workload.config.hidden_size = 30;
  workload.config.head_dim = 5;
  workload.config.num_attention_heads = 6;
  workload.config.num_key_value_heads = 3;
  workload.config.intermediate_size = 101;
  workload.config.vocab_size = 127;
  workload.sequence_length = 7;
  workload.element_bytes = 4;
  return workload;
}

std::map<std::string, int64_t> by_name(const SavedAllocations& saved) {
  std::map<std::string, int64_t> bytes;
  for (const Allocation& allocation : named(saved)) bytes[std::string(allocation.name)] = allocation.bytes;
  return bytes;
}

TEST(PlanMemory, BlockOfOneRankSavesTheFormulasBytesPerToken) {
  const int64_t tokens = 128 * 3;
  // 12h + 4(k/a)h + 6f + 4a + 8, as numbers for Llama-3-8B and Llama-2-7B, plus two fp32 values per token.
  EXPECT_EQ(total(saved_by_block(llama("llama-3-8b"), 0, /*layer=*/0)), tokens * (139'392 + 8));
  EXPECT_EQ(total(saved_by_block(llama("llama-2-7b"), 0, /*layer=*/0)), tokens * (131'712 + 8));
}

TEST(PlanMemory, TensorParallelBlockDividesAllButTheResidualStream) {
  const int64_t tokens = 128 * 3, h = 4096, rest = 139'392 - 8 * h;
  EXPECT_EQ(total(saved_by_block(llama("llama-3-8b", 8, Parallelism::tp), 5, /*layer=*/0)),
            tokens * (8 * h + 8 + rest / 8));
  EXPECT_EQ(total(saved_by_block(llama("llama-3-8b", 8, Parallelism::tp_sp), 5, /*layer=*/0)),
            tokens * (139'392 + 8) / 8);
}

TEST(PlanMemory, SavedGatheredInputsAreUnsharded) {
  Workload workload = llama("llama-3-8b", 8);
  const int64_t tokens = 128 * 3, shard = total(saved_by_block(workload, 0, /*layer=*/0));
  workload.column_input_storage = ColumnInputStorage::gathered;
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/0)) - shard, 2 * 2 * tokens * 4096 * 7 / 8);
  workload.column_input_storage = ColumnInputStorage::shard;
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/0)), shard);
}

/// In bf16, selective saves 2f fewer bytes per token; full saves the input, 2h, sharded under TP+SP.
TEST(PlanMemory, RecomputationSavesLess) {
  const int64_t tokens = 128 * 3, h = 4096, f = 14336;
  Workload workload = llama("llama-3-8b", 8);
  const int64_t none = total(saved_by_block(workload, 0, /*layer=*/0));
  workload.recompute = Recompute::selective;
  EXPECT_EQ(none - total(saved_by_block(workload, 0, /*layer=*/0)), tokens * 2 * f / 8);
  workload.recompute = Recompute::full;
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/0)), tokens * 2 * h / 8);
  EXPECT_EQ(total(read_by_block(workload, 0, /*layer=*/0)), none);
  workload.column_input_storage = ColumnInputStorage::gathered;  // only within the block that is recomputed
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/0)), tokens * 2 * h / 8);
  workload.parallelism = Parallelism::tp;
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/0)), tokens * 2 * h);
}

/// LayerNorm also saves a mean; the GeLU MLP saves one GEMM output of width f instead of two.
TEST(PlanMemory, Gpt2BlockSavesTheFormulasBytes) {
  const int64_t tokens = 128 * 3, h = 768, a = 12, f = 4 * h;
  EXPECT_EQ(total(saved_by_block(llama("gpt2"), 0, /*layer=*/0)),
            tokens * (2 * (4 * h + 4 * h + 2 * f) + 4 * a + 16));
}

/// GeLU adds the bias as it reads its input: apart from the GEMM output and GeLU's output, no third tensor of
/// the inner width 4h/t is saved.
TEST(PlanMemory, BiasAndGeluSaveNoSum) {
  const int64_t inner = 128 * 3 * (4 * 768 / 4) * 2;
  const SavedAllocations saved = saved_by_block(llama("gpt2", 4), 1, /*layer=*/0);
  EXPECT_EQ(by_name(saved)["up"], inner);
  EXPECT_EQ(by_name(saved)["down input"], inner);
  EXPECT_EQ(std::ranges::count(saved, inner, &SavedAllocation::bytes), 2);
}

TEST(PlanMemory, FrozenWeightsSaveNoInput) {
  const int64_t tokens = 128 * 3, h = 4096, f = 14336;
  Workload workload = llama("llama-3-8b");
  workload.frozen = {workload.config,
                     {"model.layers.7.self_attn.qkv_proj.weight", "model.layers.7.mlp.gate_up_proj.weight",
                      "model.layers.7.self_attn.o_proj.weight", "model.layers.7.mlp.down_proj.weight"}};
  const int64_t all = 139'392 + 8;
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/6)), tokens * all);
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/7)), tokens * (all - 2 * 2 * h - 2 * f));
}

/// norm1 is frozen in the first trained block: neither it nor any earlier layer saves anything.
TEST(PlanMemory, NothingIsSavedBelowTheFirstTrainedLayer) {
  const int64_t tokens = 128 * 3, h = 4096;
  Workload workload = llama("llama-3-8b");
  workload.frozen = all_but(workload.config, {".31.self_attn", ".31.mlp", "lm_head"});
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/30)), 0);
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/31)), tokens * (139'392 + 8 - (2 * h + 4)));
  workload.recompute = Recompute::full;
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/30)), 0);
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/31)), tokens * 2 * h);
  workload.frozen = all_but(workload.config, {"lm_head"});
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/31)), 0);
  EXPECT_EQ(total(saved_by_head(workload, 0)), 0);
}

/// An output projection saves its input even if attention has no backward.
TEST(PlanMemory, GemmsSaveTheirInputsIndependentlyOfEarlierLayers) {
  const int64_t tokens = 128 * 3, h = 4096, all = 139'392 + 8;
  Workload workload = llama("llama-3-8b");
  workload.frozen = all_but(workload.config, {".0.self_attn.o_proj"});
  const auto saved = by_name(saved_by_block(workload, 0, /*layer=*/0));
  EXPECT_EQ(saved.at("attention output"), tokens * 2 * h);
  EXPECT_FALSE(saved.contains("q") || saved.contains("norm1 input") || saved.contains("attention lse"));
  EXPECT_EQ(saved.at("norm2 input"), tokens * 2 * h);  // its gradient reaches o_proj
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/1)), tokens * (all - 2 * 2 * h - 2 * 14336));
}

/// Selective recomputation starts from the activation's saved input, if the activation has a backward.
/// GPT-2's activation has one for its bias even if the GEMM before it has none.
TEST(PlanMemory, SelectiveSavesTheDownInputIfTheActivationSavesNothing) {
  const int64_t tokens = 128 * 3, h = 768, f = 4 * h;
  Workload workload = llama("gpt2");
  workload.recompute = Recompute::selective;
  const auto saved = [&] { return by_name(saved_by_block(workload, 0, /*layer=*/11)); };
  using Saved = std::map<std::string, int64_t>;
  const std::string mlp = "model.layers.11.mlp.";
  std::set<std::string> frozen = names_without(workload.config, {mlp + "down_proj.weight"});
  workload.frozen = {workload.config, frozen};
  EXPECT_EQ(saved(), (Saved{{"down input", tokens * 2 * f}}));
  frozen.erase(mlp + "up_proj.bias");
  workload.frozen = {workload.config, frozen};
  EXPECT_EQ(saved(), (Saved{{"up", tokens * 2 * f}}));
  frozen.erase(mlp + "up_proj.weight");
  workload.frozen = {workload.config, frozen};
  EXPECT_EQ(saved(), (Saved{{"up", tokens * 2 * f}, {"mlp input", tokens * 2 * h}}));
}

/// The norm's input and 1/rms, and the gradient of its output: no logits.
TEST(PlanMemory, HeadSavesNothingOfTheVocabularysSize) {
  const int64_t tokens = 128 * 3, h = 4096;
  for (const Parallelism parallelism : {Parallelism::tp, Parallelism::tp_sp}) {
    const int64_t all = total(saved_by_head(llama("llama-3-8b", 8, parallelism), 0));
    EXPECT_EQ(all, tokens * (2 * h + 4 + 2 * h) / (parallelism == Parallelism::tp ? 1 : 8));
  }
}

TEST(PlanMemory, RanksBeyondTheKvHeadsReplicateThem) {
  const auto at_8 = by_name(saved_by_block(llama("llama-3-8b", 8), 0, /*layer=*/0));
  const auto at_32 = by_name(saved_by_block(llama("llama-3-8b", 32), 0, /*layer=*/0));
  EXPECT_EQ(at_32.at("k"), at_8.at("k"));
  EXPECT_EQ(at_32.at("q") * 4, at_8.at("q"));
}

TEST(PlanMemory, OddSizesAreCountedPerRank) {
  const Workload workload = odd(/*tp=*/2, Parallelism::tp_sp);
  const auto first = by_name(saved_by_block(workload, 0, /*layer=*/0)),
             second = by_name(saved_by_block(workload, 1, /*layer=*/0));
  EXPECT_EQ(first.at("norm1 input"), 4 * 3 * 30 * 4);  // 4 of 7 positions
  EXPECT_EQ(second.at("norm1 input"), 3 * 3 * 30 * 4);
  EXPECT_EQ(first.at("k"), 2 * 5 * 21 * 4);   // KV heads 0, 1
  EXPECT_EQ(second.at("k"), 2 * 5 * 21 * 4);  // KV heads 1, 2
  EXPECT_EQ(first.at("gate and up"), 2 * 51 * 21 * 4);
  EXPECT_EQ(second.at("gate and up"), 2 * 50 * 21 * 4);
  EXPECT_EQ(by_name(saved_by_head(workload, 0)).at("head input gradient"), 4 * 3 * 30 * 4);
  EXPECT_EQ(by_name(saved_by_head(workload, 1)).at("head input gradient"), 3 * 3 * 30 * 4);
}

TEST(PlanMemory, RankWithoutPositionsSavesNoResidualStream) {
  Workload workload = odd(/*tp=*/4, Parallelism::tp_sp);
  workload.sequence_length = 3;
  const auto last = by_name(saved_by_block(workload, 3, /*layer=*/0));
  EXPECT_EQ(last.at("norm1 input") + last.at("qkv input") + last.at("norm2 rstd"), 0);
  EXPECT_GT(last.at("q"), 0);
}

TEST(PlanMemory, StatisticsAreFp64InFp64Models) {
  Workload workload = odd(1, Parallelism::tp);
  const int64_t fp32 = total(saved_by_block(workload, 0, /*layer=*/0));
  workload.element_bytes = 8;
  EXPECT_EQ(total(saved_by_block(workload, 0, /*layer=*/0)), 2 * fp32);
}

TEST(PlanMemory, OneRankHasThePublishedNumberOfParameters) {
  EXPECT_EQ(local_parameter_count(llama("llama-2-7b"), 0), 6'738'415'616);
  EXPECT_EQ(local_parameter_count(llama("llama-3.2-1b"), 0), 1'235'814'400);
  EXPECT_EQ(local_parameter_count(llama("llama-3-8b"), 0), 8'030'261'248);
}

TEST(PlanMemory, RanksStoreEveryParameterOncePlusReplicas) {
  for (int tp : {2, 4, 8, 32}) {
    int64_t held = 0;
    for (int rank = 0; rank < tp; ++rank) held += local_parameter_count(llama("llama-3-8b", tp), rank);
    const int64_t norms = (2 * 32 + 1) * 4096;
    const int64_t kv_copies = std::max(8, tp) - 8;
    EXPECT_EQ(held, 8'030'261'248 + (tp - 1) * norms + kv_copies * 32 * 2 * 128 * 4096) << "tp " << tp;
  }
}

TEST(PlanMemory, BiasesAreCounted) {
  Workload workload = odd(/*tp=*/2, Parallelism::tp_sp);
  const int64_t without = local_parameter_count(workload, 1);
  workload.config.qkv_bias = workload.config.attention_out_bias = workload.config.mlp_bias = true;
  const int64_t qkv = (3 + 2 + 2) * 5, gate_up = 2 * 50, row_biases = 2 * 30;
  EXPECT_EQ(local_parameter_count(workload, 1) - without, 6 * (qkv + gate_up + row_biases));
}

TEST(PlanMemory, EveryFamilyHasItsParameterCount) {
  for (const std::string& name : config::preset_names()) {
    const Workload workload = llama(name);
    EXPECT_EQ(local_parameter_count(workload, 0), config::parameter_count(workload.config)) << name;
  }
}

TEST(PlanMemory, StatesTake16BytesPerParameterInFp32And18InBf16) {
  Workload workload = llama("llama-3.2-1b");
  EXPECT_EQ(total(model_states(workload, 0)), int64_t{18} * 1'235'814'400);
  workload.element_bytes = 4;
  EXPECT_EQ(total(model_states(workload, 0)), int64_t{16} * 1'235'814'400);
}

TEST(PlanMemory, FrozenParametersHaveWeightsOnly) {
  Workload workload = llama("llama-3.2-1b", /*tp=*/2);
  const int64_t all = total(model_states(workload, 0)), held = local_parameter_count(workload, 0);
  workload.frozen = {workload.config, {"model.embed_tokens.weight"}};
  EXPECT_EQ(all - total(model_states(workload, 0)), int64_t{16} * 128256 / 2 * 2048);
  EXPECT_EQ(local_parameter_count(workload, 0), held);
}

TEST(PlanMemory, InvalidWorkloadsThrow) {
  EXPECT_THROW(saved_by_block(llama("tiny", /*tp=*/9), 0, /*layer=*/0), c10::ValueError);
  EXPECT_THROW(saved_by_block(llama("tiny", /*tp=*/2), 2, /*layer=*/0), c10::ValueError);
  Workload workload = llama("tiny");
  workload.element_bytes = 3;
  EXPECT_THROW(model_states(workload, 0), c10::ValueError);
  workload = llama("tiny");
  workload.batch_size = 0;
  EXPECT_THROW(saved_by_head(workload, 0), c10::ValueError);
  workload = llama("tiny");
  const std::set<std::string> unknown{"model.layers.6.mlp.down_proj.weight"};  // of six layers
  EXPECT_THROW(FrozenParameters(workload.config, unknown), c10::ValueError);
  workload.frozen = {config::preset("gpt2"), {"model.embed_tokens.weight"}};
  EXPECT_THROW(saved_by_head(workload, 0), c10::ValueError);
  workload.frozen = all_but(workload.config, {});
  EXPECT_THROW(model_states(workload, 0), c10::ValueError);
}

}  // namespace
}  // namespace shardwise::plan::memory_test
