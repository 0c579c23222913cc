// Planned communication against closed forms; counts_test.cpp compares it with the counters of real runs.
#include "shardwise/plan/communication.h"

#include <gtest/gtest.h>

#include "tests/plan/frozen.h"
#include "tests/plan/print.h"

namespace shardwise::plan::communication_test {
namespace {

Workload llama_3_8b(int tp, Parallelism parallelism,
                    ColumnInputStorage column_input_storage = ColumnInputStorage::shard_in_place) {
  Workload workload;
  workload.config = config::preset("llama-3-8b");
  workload.tp = tp;
  workload.parallelism = parallelism;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  workload.element_bytes = 2;
  workload.column_input_storage = column_input_storage;
  return workload;
}

constexpr int64_t kHidden = 8192 * 4096 * 2;      // bytes of [s, b, h]
constexpr int64_t kLossTerms = 7 * 3 * 8192 * 4;  // in 16 chunks

TEST(PlanCommunication, OneRankSendsNothing) {
  const Workload workload = llama_3_8b(1, Parallelism::tp_sp);
  EXPECT_EQ(micro_batch_communication(workload, 0).both(), Collectives{});
  EXPECT_EQ(optimizer_communication(workload, 0), Collectives{});
}

TEST(PlanCommunication, TensorParallelBlockReducesTwiceEachWay) {
  const Passes block = block_communication(llama_3_8b(8, Parallelism::tp), 3, /*layer=*/0);
  EXPECT_EQ(block.forward.all_reduce, (Traffic{2, 2 * 2 * kHidden * 7 / 8}));
  EXPECT_EQ(block.backward, block.forward);
  EXPECT_EQ(block.forward.total(), block.forward.all_reduce);
}

TEST(PlanCommunication, SequenceParallelBlockGathersAndScatters) {
  const Passes block = block_communication(llama_3_8b(8, Parallelism::tp_sp), 3, /*layer=*/0);
  EXPECT_EQ(block.forward.all_gather, (Traffic{2, 2 * kHidden * 7 / 8}));
  EXPECT_EQ(block.forward.reduce_scatter, block.forward.all_gather);
  EXPECT_EQ(block.backward.all_gather, (Traffic{4, 4 * kHidden * 7 / 8}));
  EXPECT_EQ(block.backward.reduce_scatter, block.forward.reduce_scatter);
  EXPECT_EQ(block.both().all_reduce, Traffic{});
}

// One unit is bsh(t−1)/t. With saved gathered inputs TP+SP sends eight units, as TP does; without, ten: 14
// and 17.5 GiB in 32 layers.
TEST(PlanCommunication, RegatheringSendsTenUnitsInsteadOfEight) {
  const int64_t gib = int64_t{1} << 30;
  const auto layers = [](const Workload& workload) {
    return 32 * block_communication(workload, 0, /*layer=*/0).both().total().bytes;
  };
  EXPECT_EQ(layers(llama_3_8b(8, Parallelism::tp)), 14 * gib);
  EXPECT_EQ(layers(llama_3_8b(8, Parallelism::tp_sp, ColumnInputStorage::gathered)), 14 * gib);
  EXPECT_EQ(2 * layers(llama_3_8b(8, Parallelism::tp_sp, ColumnInputStorage::shard)), 35 * gib);
  EXPECT_EQ(2 * layers(llama_3_8b(8, Parallelism::tp_sp, ColumnInputStorage::shard_in_place)), 35 * gib);
}

/// Backward repeats the forward's two g and its first g*, but not the last g*: three units more. With saved
/// gathered inputs eleven in total, because those inputs live for one block only.
TEST(PlanCommunication, FullRecomputationRepeatsThreeOfFourCollectives) {
  Workload workload = llama_3_8b(8, Parallelism::tp_sp);
  const int64_t unit = kHidden * 7 / 8;
  const auto sent = [&] { return block_communication(workload, 0, /*layer=*/0).both().total(); };
  EXPECT_EQ(sent(), (Traffic{10, 10 * unit}));
  workload.recompute = Recompute::selective;
  EXPECT_EQ(sent(), (Traffic{10, 10 * unit}));
  workload.recompute = Recompute::full;
  EXPECT_EQ(sent(), (Traffic{13, 13 * unit}));
  workload.column_input_storage = ColumnInputStorage::gathered;
  EXPECT_EQ(sent(), (Traffic{11, 11 * unit}));
  workload.parallelism = Parallelism::tp;  // an all_reduce is two units
  EXPECT_EQ(sent(), (Traffic{5, 10 * unit}));
}

TEST(PlanCommunication, SplitBatchSendsTheSameBytesInTwiceTheCalls) {
  Workload workload = llama_3_8b(8, Parallelism::tp);
  workload.batch_size = 3;
  const Passes full = block_communication(workload, 3, /*layer=*/0);
  workload.split_batch = true;
  const Passes halves = block_communication(workload, 3, /*layer=*/0);
  EXPECT_EQ(halves.forward.all_reduce, (Traffic{4, 3 * 2 * 2 * kHidden * 7 / 8}));
  EXPECT_EQ(halves.backward, halves.forward);
  EXPECT_EQ(full.forward.all_reduce, (Traffic{2, 3 * 2 * 2 * kHidden * 7 / 8}));
  EXPECT_EQ(head_communication(workload, 3).both().all_reduce.calls, 1);
}

/// Backward all-gathers for the two row-parallel layers only.
TEST(PlanCommunication, NothingIsGatheredForFrozenColumnWeights) {
  Workload workload = llama_3_8b(8, Parallelism::tp_sp);
  workload.frozen = {workload.config,
                     {"model.layers.4.self_attn.qkv_proj.weight", "model.layers.4.mlp.gate_up_proj.weight"}};
  const int64_t unit = kHidden * 7 / 8;
  const Passes block = block_communication(workload, 0, /*layer=*/4);
  EXPECT_EQ(block.backward.all_gather, (Traffic{2, 2 * unit}));
  EXPECT_EQ(block.backward.reduce_scatter, (Traffic{2, 2 * unit}));
  EXPECT_EQ(block.forward, block_communication(workload, 0, /*layer=*/3).forward);
}

TEST(PlanCommunication, BackwardSendsNothingBelowTheFirstTrainedLayer) {
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    Workload workload = llama_3_8b(8, Parallelism::tp_sp);
    workload.recompute = recompute;
    workload.frozen = all_but(workload.config, {"lm_head"});
    const int64_t unit = kHidden * 7 / 8;
    const Passes passes = micro_batch_communication(workload, 2);
    EXPECT_EQ(passes.forward.all_gather, (Traffic{65 + 16, 65 * unit + kLossTerms}));
    EXPECT_EQ(passes.forward.reduce_scatter, (Traffic{65, 65 * unit}));  // none for the head's input
    EXPECT_EQ(passes.backward, Collectives{});
    workload.parallelism = Parallelism::tp;
    EXPECT_EQ(micro_batch_communication(workload, 2).backward, Collectives{});
  }
}

/// The bias gradient needs only the local rows. The MLP's reduce_scatter produces them, and no frozen weight
/// needs a gathered input.
TEST(PlanCommunication, RowBiasAloneGathersNothing) {
  Workload workload = llama_3_8b(8, Parallelism::tp_sp);
  workload.config.attention_out_bias = true;
  workload.frozen = all_but(workload.config, {".31.self_attn.o_proj.bias"});
  const int64_t unit = kHidden * 7 / 8;
  const Collectives backward = block_communication(workload, 0, /*layer=*/31).backward;
  EXPECT_EQ(backward.all_gather, (Traffic{1, unit}));
  EXPECT_EQ(backward.reduce_scatter, (Traffic{1, unit}));
}

TEST(PlanCommunication, FullRecomputationSkipsBlocksWithoutABackward) {
  Workload workload = llama_3_8b(8, Parallelism::tp_sp);
  workload.recompute = Recompute::full;
  auto frozen = names_without(workload.config, {".5.mlp.down_proj", "norm.weight"});
  for (int layer = 0; layer < 5; ++layer)  // norms of block 5 and later stay trained
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      frozen.insert(prefix_of_block(layer) + norm + ".weight");
  workload.frozen = {workload.config, frozen};
  const int64_t unit = kHidden * 7 / 8;
  EXPECT_EQ(block_communication(workload, 0, /*layer=*/4).backward, Collectives{});
  // Recomputation: two all_gathers, one reduce_scatter. Backward: two reduce_scatters, and two all_gathers of
  // the row-parallel output gradients.
  EXPECT_EQ(block_communication(workload, 0, /*layer=*/5).backward.total(), (Traffic{7, 7 * unit}));
}

TEST(PlanCommunication, UnevenShardsSendTheirLocalBytes) {
  Workload workload = llama_3_8b(4, Parallelism::tp_sp);
  workload.sequence_length = 6;  // 2, 2, 1, 1 positions
  const int64_t position = 4096 * 2;
  const Passes first = embedding_communication(workload, 0), last = embedding_communication(workload, 3);
  EXPECT_EQ(first.forward.reduce_scatter, (Traffic{1, 4 * position}));
  EXPECT_EQ(last.forward.reduce_scatter, (Traffic{1, 5 * position}));
  EXPECT_EQ(first.backward.all_gather, (Traffic{1, 2 * position * 3}));
  EXPECT_EQ(last.backward.all_gather, (Traffic{1, 1 * position * 3}));
}

TEST(PlanCommunication, EmptyShardsCountACall) {
  Workload workload = llama_3_8b(4, Parallelism::tp_sp);
  workload.sequence_length = 3;
  EXPECT_EQ(embedding_communication(workload, 3).backward.all_gather, (Traffic{1, 0}));
}

/// 16 chunks of 512 rows. The gradient of the head's input is reduced in the forward.
TEST(PlanCommunication, LossGathersThreeValuesPerToken) {
  const Passes head = head_communication(llama_3_8b(8, Parallelism::tp), 0);
  EXPECT_EQ(head.forward.all_gather, (Traffic{16, kLossTerms}));
  EXPECT_EQ(head.forward.all_reduce, (Traffic{1, 2 * kHidden * 7 / 8}));
  EXPECT_EQ(head.backward.total(), (Traffic{}));
}

TEST(PlanCommunication, LabelSmoothingGathersAFourthValue) {
  Workload workload = llama_3_8b(8, Parallelism::tp);
  workload.has_label_smoothing = true;
  EXPECT_EQ(head_communication(workload, 0).forward.all_gather, (Traffic{16, 7 * 4 * 8192 * 4}));
}

/// Under TP+SP the chunks are those of each rank's rows, 513 and 512, after an all_gather of these rows.
TEST(PlanCommunication, ChunksOfTheLossEndWithARanksRows) {
  Workload workload = llama_3_8b(2, Parallelism::tp_sp);
  workload.sequence_length = 1025;
  const int64_t row = 4096 * 2;
  const Passes first = head_communication(workload, 0), second = head_communication(workload, 1);
  EXPECT_EQ(first.forward.all_gather, (Traffic{1 + 3, 513 * row + 3 * 1025 * 4}));
  EXPECT_EQ(second.forward.all_gather, (Traffic{1 + 3, 512 * row + 3 * 1025 * 4}));
  EXPECT_EQ(first.forward.reduce_scatter, (Traffic{1, 512 * row}));
  EXPECT_EQ(first.backward.total(), (Traffic{}));
}

// Three positions over two ranks: 3·4096 values are split evenly, 2 rows of one rank are not.
TEST(PlanCommunication, AllReduceOfAnOddMessageCountsTheEvenSlice) {
  Workload workload = llama_3_8b(2, Parallelism::tp);
  workload.sequence_length = 3;
  workload.config.hidden_size = 33;
  EXPECT_EQ(head_communication(workload, 0).forward.all_reduce, (Traffic{1, (50 + 49) * 2}));
  EXPECT_EQ(head_communication(workload, 1).forward.all_reduce, (Traffic{1, (49 + 50) * 2}));
}

TEST(PlanCommunication, OptimizerReducesNormWeightsOnlyUnderSequenceParallelism) {
  EXPECT_EQ(synchronized_elements(llama_3_8b(8, Parallelism::tp)), 0);
  EXPECT_EQ(optimizer_communication(llama_3_8b(8, Parallelism::tp), 0).all_reduce, (Traffic{1, 7 * 8 + 0}));
  EXPECT_EQ(synchronized_elements(llama_3_8b(8, Parallelism::tp_sp)), (2 * 32 + 1) * 4096);
  EXPECT_EQ(optimizer_communication(llama_3_8b(8, Parallelism::tp_sp), 1).all_reduce,
            (Traffic{2, 2 * (2 * 32 + 1) * 4096 * 4 * 7 / 8 + 8}));
}

TEST(PlanCommunication, OptimizerReducesReplicatedKvHeads) {
  EXPECT_EQ(synchronized_elements(llama_3_8b(32, Parallelism::tp)), 32 * 2 * 8 * 128 * 4096);
  Workload overlapping = llama_3_8b(2, Parallelism::tp);
  overlapping.config.num_attention_heads = 6;  // KV heads 0, 1 and 1, 2: one is replicated
  overlapping.config.num_key_value_heads = 3;
  EXPECT_EQ(synchronized_elements(overlapping), 32 * 2 * 1 * 128 * 4096);
  overlapping.config.qkv_bias = overlapping.config.attention_out_bias = true;
  EXPECT_EQ(synchronized_elements(overlapping), 32 * 2 * 1 * 128 * 4097);
}

TEST(PlanCommunication, RowBiasesAreReducedLikeNormWeights) {
  Workload workload = llama_3_8b(2, Parallelism::tp_sp);
  workload.config.qkv_bias = workload.config.attention_out_bias = workload.config.mlp_bias = true;
  EXPECT_EQ(synchronized_elements(workload), (4 * 32 + 1) * 4096);
}

// GPT-2: per layer two norms with weight and bias and two row-parallel biases; the last norm; 1024 learned
// positions.
TEST(PlanCommunication, LearnedPositionsAreReducedUnderSequenceParallelism) {
  Workload workload = llama_3_8b(2, Parallelism::tp_sp);
  workload.config = config::preset("gpt2");
  EXPECT_EQ(synchronized_elements(workload), (12 * 6 + 2 + 1024) * 768);
  workload.parallelism = Parallelism::tp;
  EXPECT_EQ(synchronized_elements(workload), 0);
}

TEST(PlanCommunication, QkNormGradientsArePartialSumsWithAndWithoutSequenceParallelism) {
  Workload workload = llama_3_8b(2, Parallelism::tp);
  workload.config.qk_norm = true;
  EXPECT_EQ(synchronized_elements(workload), 32 * 2 * 128);
}

TEST(PlanCommunication, FrozenParametersAreNotSynchronized) {
  Workload workload = llama_3_8b(8, Parallelism::tp_sp);
  workload.frozen = {workload.config, {"model.norm.weight", "model.layers.0.input_layernorm.weight"}};
  EXPECT_EQ(synchronized_elements(workload), (2 * 32 - 1) * 4096);
  workload.frozen = all_but(workload.config, {"_proj.weight"});
  EXPECT_EQ(optimizer_communication(workload, 1).all_reduce, (Traffic{1, 8}));
}

TEST(PlanCommunication, MicroBatchIsEmbeddingBlocksAndHead) {
  const Workload workload = llama_3_8b(8, Parallelism::tp_sp, ColumnInputStorage::shard);
  const Passes passes = micro_batch_communication(workload, 2);
  EXPECT_EQ(passes.forward.all_gather, (Traffic{65 + 16, 65 * kHidden * 7 / 8 + kLossTerms}));
  EXPECT_EQ(passes.forward.reduce_scatter, (Traffic{66, 66 * kHidden * 7 / 8}));  // the loss's dX too
  EXPECT_EQ(passes.backward.all_gather, (Traffic{129, 129 * kHidden * 7 / 8}));
  EXPECT_EQ(passes.backward.reduce_scatter, (Traffic{64, 64 * kHidden * 7 / 8}));
}

}  // namespace
}  // namespace shardwise::plan::communication_test
