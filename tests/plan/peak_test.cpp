// The peak memory of rank processes, measured by the counting allocator, against plan/peak.
#include "shardwise/plan/peak.h"

#include <gtest/gtest.h>
#include <stdio.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "shardwise/config/freeze.h"
#include "shardwise/kernels/bf16_product.h"
#include "tests/plan/frozen.h"
#include "tests/support/temporary.h"

namespace shardwise::plan::peak_test {
namespace {

/// Returns the program's standard output. One thread per rank, because every thread allocates scratch memory.
std::string output_of(const std::string& arguments) {
  const std::string command =
      "SHARDWISE_THREADS=1 " + std::string(SHARDWISE_PROGRAM) + " " + arguments + " 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, count);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return output;
}

struct Case {
  const char* name;
  int tp;
  Parallelism parallelism;
  int64_t element_bytes;
  int64_t sequence_length, batch_size;
  Recompute recompute = Recompute::none;
  const char* dropout = "0";
  std::vector<std::string> freeze = {};
};

const std::vector<std::string> kAllButHead = {"model.*"};
const std::vector<std::string> kLowerHalf = {"model.embed_tokens.*", "model.layers.[0-2].*"};
const std::vector<std::string> kUpperHalf = {"model.layers.[3-5].*", "model.norm.*", "lm_head.*"};
const std::vector<std::string> kAllButNorms = {"*_proj.*", "*embed*", "lm_head.*"};
const std::vector<std::string> kAllButLastDown = {"model.embed_tokens.*", "model.layers.[0-4].*",
                                                  "model.layers.5.*norm.*", "model.layers.5.self_attn.*",
                                                  "model.layers.5.mlp.[gu]*"};

const char* flag_of(Recompute recompute) {
  return recompute == Recompute::none ? "none" : recompute == Recompute::full ? "full" : "selective";
}

/// Returns `flag` and `options`, each quoted for the shell.
std::string flag_with(const char* flag, const std::vector<std::string>& options) {
  if (options.empty()) return "";
  std::string text = std::string(" ") + flag;
  for (const std::string& option : options) text += " '" + option + "'";
  return text;
}

Workload workload_of(const Case& c, const config::Config& model) {
  Workload workload;
  workload.config = model;
  workload.tp = c.tp;
  workload.parallelism = c.parallelism;
  workload.element_bytes = c.element_bytes;
  workload.sequence_length = c.sequence_length;
  workload.batch_size = c.batch_size;
  workload.recompute = c.recompute;
  workload.wgrad_operand_bytes = kernels::weight_gradient_operand_bytes();
  workload.has_dropout = std::string(c.dropout) != "0";
  workload.frozen = {workload.config, config::frozen_by("plan", c.freeze, workload.config).parameters};
  return workload;
}

/// Trains the model that the flag `model` names, and returns what the report says of each rank.
nlohmann::json trained_ranks(const Case& c, const std::string& model) {
  const std::string output = output_of(
      "train " + model + " --steps 2 --json --text " SHARDWISE_SOURCE_DIR "/shardwise --tp " +
      std::to_string(c.tp) + (c.parallelism == Parallelism::tp ? " --no-sequence-parallel" : "") +
      " --dtype " + (c.element_bytes == 2 ? "bf16" : "fp32") + " --seq-len " +
      std::to_string(c.sequence_length) + " --batch-size " + std::to_string(c.batch_size) + " --recompute " +
      flag_of(c.recompute) + " --dropout " + c.dropout + flag_with("--freeze", c.freeze));
  return nlohmann::json::parse(output)["ranks"];
}

void expect_peaks(const nlohmann::json& ranks, const Workload& workload, double tolerance) {
  ASSERT_EQ(ranks.size(), static_cast<size_t>(workload.tp));
  for (int rank = 0; rank < workload.tp; ++rank) {
    const Peak peak = training_peak(workload, rank);
    const double measured = ranks[rank]["peak_memory_bytes"], planned = peak.bytes();
    EXPECT_NEAR(planned / measured, 1, tolerance) << "rank " << rank << " measured " << measured;
    const double shared = ranks[rank]["peak_symmetric_heap_bytes"],
                 planned_shared = peak.symmetric_heap_bytes();
    EXPECT_NEAR(planned_shared, shared, tolerance * shared) << "rank " << rank;
  }
}

class PlanPeak : public ::testing::TestWithParam<Case> {};

/// The counter includes what the formulas leave out (tables, small buffers, packed weights of oneDNN): 1 %.
TEST_P(PlanPeak, MatchesTheMeasuredPeakOfEveryRank) {
  const Case& c = GetParam();
  expect_peaks(trained_ranks(c, "--preset tiny"), workload_of(c, config::preset("tiny")), 0.01);
}

/// The widths of a published model, where what the formulas leave out is smaller still: 0.1 %.
TEST(PlanPeakAtFullWidth, MatchesTheMeasuredPeakOfEveryRank) {
  config::Config model = config::preset("llama-3.2-1b");
  model.num_hidden_layers = 1;
  model.vocab_size = 256;  // the bytes of the text
  const test::TemporaryDirectory scratch;
  const std::string file = scratch.put("config.json", config::to_json(model));
  const Case c{"TpSp", 2, Parallelism::tp_sp, 4, 256, 1};
  expect_peaks(trained_ranks(c, "--model-config " + file), workload_of(c, model), 0.001);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, PlanPeak,
    ::testing::Values(Case{"One", 1, Parallelism::tp, 4, 128, 4}, Case{"Tp", 2, Parallelism::tp, 4, 128, 4},
                      Case{"TpSp", 2, Parallelism::tp_sp, 4, 128, 4},
                      Case{"TpSpUnevenBf16", 3, Parallelism::tp_sp, 2, 101, 5},
                      Case{"TpSpSelective", 2, Parallelism::tp_sp, 4, 128, 4, Recompute::selective},
                      Case{"TpFull", 2, Parallelism::tp, 4, 128, 4, Recompute::full},
                      Case{"TpFullDropout", 2, Parallelism::tp, 4, 128, 4, Recompute::full, "0.1"},
                      Case{"TpDropout", 2, Parallelism::tp, 4, 128, 4, Recompute::none, "0.1"},
                      Case{"OneBf16", 1, Parallelism::tp, 2, 128, 4},
                      Case{"OneOfFourLossChunks", 1, Parallelism::tp, 4, 512, 4},
                      Case{"TpSpOfSixLossChunksBf16", 3, Parallelism::tp_sp, 2, 512, 4},
                      Case{"TpSpFullUnevenBf16", 3, Parallelism::tp_sp, 2, 101, 5, Recompute::full}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Frozen, PlanPeak,
    ::testing::Values(
        Case{"OneAllButHead", 1, Parallelism::tp, 4, 128, 4, Recompute::none, "0", kAllButHead},
        Case{"TpAllButHead", 2, Parallelism::tp, 4, 128, 4, Recompute::none, "0", kAllButHead},
        Case{"TpSpAllButHead", 2, Parallelism::tp_sp, 4, 128, 4, Recompute::none, "0", kAllButHead},
        Case{"TpSpAllButHeadBf16", 3, Parallelism::tp_sp, 2, 101, 5, Recompute::none, "0.1", kAllButHead},
        Case{"TpSpLowerHalf", 2, Parallelism::tp_sp, 4, 128, 4, Recompute::none, "0", kLowerHalf},
        Case{"TpLowerHalfFull", 2, Parallelism::tp, 4, 128, 4, Recompute::full, "0", kLowerHalf},
        Case{"TpSpUpperHalfBf16", 2, Parallelism::tp_sp, 2, 128, 4, Recompute::none, "0", kUpperHalf},
        Case{"TpUpperHalfSelective", 2, Parallelism::tp, 4, 128, 4, Recompute::selective, "0", kUpperHalf},
        Case{"TpAllButNorms", 2, Parallelism::tp, 4, 128, 4, Recompute::none, "0", kAllButNorms},
        Case{"TpSpAllButNormsFull", 2, Parallelism::tp_sp, 4, 128, 4, Recompute::full, "0", kAllButNorms},
        Case{"TpAllButLastDownFull", 2, Parallelism::tp, 4, 128, 4, Recompute::full, "0.1", kAllButLastDown}),
    [](const auto& info) { return info.param.name; });

/// The shards of every column-parallel input, and one partial sum [s, b, h] at a time.
TEST(PlanPeakFormulas, SymmetricHeapHoldsColumnInputsAndOnePartialSum) {
  Workload workload;
  workload.config = config::preset("llama-3-8b");
  workload.tp = 8;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  workload.element_bytes = 2;
  const int64_t full = 8192 * 4096 * 2;
  EXPECT_EQ(training_peak(workload, 0).symmetric_heap_bytes(), (2 * 32 + 1) * full / 8 + full);
  workload.column_input_storage = ColumnInputStorage::shard;
  EXPECT_EQ(training_peak(workload, 0).symmetric_heap_bytes(), 0);
}

/// Under TP the first block's input is the reduced embedding in the symmetric heap; dropout copies it to
/// private memory. At the loss both models hold it, and no mask; the gradient of the head's input is a
/// partial sum.
TEST(PlanPeakFormulas, FirstBlockInputStaysInTheSymmetricHeapUnderTp) {
  Workload workload;
  workload.config = config::preset("llama-3-8b");
  workload.tp = 8;
  workload.parallelism = Parallelism::tp;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  const int64_t full = 8192 * 4096 * 4;
  const auto at_loss = [&](Pool pool) {
    for (const MemorySnapshot& snapshot : peak_candidates(workload, 0)) {
      if (snapshot.name == "loss") return total(snapshot.allocations, pool);
    }
    return int64_t{0};
  };
  const int64_t private_bytes = at_loss(Pool::private_memory);
  EXPECT_EQ(at_loss(Pool::symmetric_heap), 2 * full);
  workload.has_dropout = true;
  EXPECT_EQ(at_loss(Pool::private_memory) - private_bytes, full);
  EXPECT_EQ(at_loss(Pool::symmetric_heap), full);
}

/// Only the head has a backward. The peak is what the last block's MLP holds before its output is reduced,
/// including norm2's output, and nothing of the other blocks.
TEST(PlanPeakFormulas, FrozenModelPeaksInForward) {
  Workload workload;
  workload.config = config::preset("llama-3-8b");
  workload.config.vocab_size = 256;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  workload.frozen = all_but(workload.config, {"lm_head"});
  const Peak peak = training_peak(workload, 0);
  EXPECT_EQ(peak.private_memory.name, "down, forward");
  EXPECT_EQ(total(peak.private_memory.allocations), 8192 * (3 * 4096 + 3 * 14336) * 4);
}

/// The loss holds two buffers of [s, b, h] if it all-gathers its input, and one if it reads the peers' shards
/// in shared memory.
TEST(PlanPeakFormulas, RegatheringNeedsTwoUnshardedBuffers) {
  Workload workload;
  workload.config = config::preset("llama-3-8b");
  workload.tp = 8;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  const int64_t full = 8192 * 4096 * 4, column_inputs = 2 * 32 * full / 8;
  const auto bytes_in_loss = [&] {
    for (const MemorySnapshot& snapshot : peak_candidates(workload, 0)) {
      if (snapshot.name == "loss") return total(snapshot.allocations);
    }
    return int64_t{0};
  };
  const int64_t in_place = bytes_in_loss();
  workload.column_input_storage = ColumnInputStorage::shard;
  EXPECT_EQ(bytes_in_loss() - in_place, full);
  workload.column_input_storage = ColumnInputStorage::gathered;
  EXPECT_EQ(bytes_in_loss() - in_place, 7 * column_inputs + full);
}

/// A chunk of logits is larger than a block's activations in short sequences only.
TEST(PlanPeakFormulas, NamesThePeakSnapshot) {
  Workload workload;
  workload.config = config::preset("llama-3-8b");
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  EXPECT_EQ(training_peak(workload, 0).private_memory.name, "activation");
  workload.sequence_length = 512;
  EXPECT_EQ(training_peak(workload, 0).private_memory.name, "loss");
  workload.config.vocab_size = 256;
  EXPECT_EQ(training_peak(workload, 0).private_memory.name, "activation");
}

}  // namespace
}  // namespace shardwise::plan::peak_test
