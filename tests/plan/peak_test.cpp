// What ranks that are processes of their own really held at most, by the counting allocator, against
// plan/peak.
#include "shardwise/plan/peak.h"

#include <gtest/gtest.h>
#include <stdio.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "shardwise/kernels/bf16_product.h"
#include "shardwise/train/freeze.h"
#include "tests/plan/frozen.h"

namespace shardwise::plan::peak_test {
namespace {

/// Standard output of the program. One thread a rank: each takes scratch of its own, above all in products.
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
  Stream stream;
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

/// `options` after it, each quoted for the shell.
std::string flag_with(const char* flag, const std::vector<std::string>& options) {
  if (options.empty()) return "";
  std::string text = std::string(" ") + flag;
  for (const std::string& option : options) text += " '" + option + "'";
  return text;
}

class PlanPeak : public ::testing::TestWithParam<Case> {};

/// The counter also sees what the formulas leave out (tables, small buffers, what oneDNN packs): one part in
/// a hundred.
TEST_P(PlanPeak, IsWhatEveryRankHeldAtMost) {
  const Case& c = GetParam();
  Workload workload;
  workload.config = model::preset("tiny");
  workload.tp = c.tp;
  workload.stream = c.stream;
  workload.element_bytes = c.element_bytes;
  workload.sequence_length = c.sequence_length;
  workload.batch_size = c.batch_size;
  workload.recompute = c.recompute;
  workload.factor_bytes = kernels::has_bf16_products() ? 2 : 4;
  workload.has_dropout = std::string(c.dropout) != "0";
  workload.frozen = train::frozen_by(c.freeze, workload.config).parameters;
  const std::string output = output_of(
      std::string("train --preset tiny --steps 2 --json --text " SHARDWISE_SOURCE_DIR "/shardwise") +
      " --tp " + std::to_string(c.tp) + (c.stream == Stream::tp ? " --no-sequence-parallel" : "") +
      " --dtype " + (c.element_bytes == 2 ? "bf16" : "fp32") + " --seq-len " +
      std::to_string(c.sequence_length) + " --batch-size " + std::to_string(c.batch_size) + " --recompute " +
      flag_of(c.recompute) + " --dropout " + c.dropout + flag_with("--freeze", c.freeze));
  const auto ranks = nlohmann::json::parse(output)["ranks"];
  ASSERT_EQ(ranks.size(), static_cast<size_t>(c.tp));
  for (int rank = 0; rank < c.tp; ++rank) {
    const double held = ranks[rank]["peak_memory_bytes"], planned = training_peak(workload, rank).bytes();
    EXPECT_NEAR(planned / held, 1, 0.01) << "rank " << rank << " held " << held;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, PlanPeak,
    ::testing::Values(Case{"One", 1, Stream::tp, 4, 128, 4}, Case{"Tp", 2, Stream::tp, 4, 128, 4},
                      Case{"TpSp", 2, Stream::tp_sp, 4, 128, 4},
                      Case{"TpSpUnevenBf16", 3, Stream::tp_sp, 2, 101, 5},
                      Case{"TpSpSelective", 2, Stream::tp_sp, 4, 128, 4, Recompute::selective},
                      Case{"TpFull", 2, Stream::tp, 4, 128, 4, Recompute::full},
                      Case{"TpFullDropout", 2, Stream::tp, 4, 128, 4, Recompute::full, "0.1"},
                      Case{"TpDropout", 2, Stream::tp, 4, 128, 4, Recompute::none, "0.1"},
                      Case{"OneBf16", 1, Stream::tp, 2, 128, 4},
                      Case{"TpSpFullUnevenBf16", 3, Stream::tp_sp, 2, 101, 5, Recompute::full}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Frozen, PlanPeak,
    ::testing::Values(
        Case{"OneAllButHead", 1, Stream::tp, 4, 128, 4, Recompute::none, "0", kAllButHead},
        Case{"TpAllButHead", 2, Stream::tp, 4, 128, 4, Recompute::none, "0", kAllButHead},
        Case{"TpSpAllButHead", 2, Stream::tp_sp, 4, 128, 4, Recompute::none, "0", kAllButHead},
        Case{"TpSpAllButHeadBf16", 3, Stream::tp_sp, 2, 101, 5, Recompute::none, "0.1", kAllButHead},
        Case{"TpSpLowerHalf", 2, Stream::tp_sp, 4, 128, 4, Recompute::none, "0", kLowerHalf},
        Case{"TpLowerHalfFull", 2, Stream::tp, 4, 128, 4, Recompute::full, "0", kLowerHalf},
        Case{"TpSpUpperHalfBf16", 2, Stream::tp_sp, 2, 128, 4, Recompute::none, "0", kUpperHalf},
        Case{"TpUpperHalfSelective", 2, Stream::tp, 4, 128, 4, Recompute::selective, "0", kUpperHalf},
        Case{"TpAllButNorms", 2, Stream::tp, 4, 128, 4, Recompute::none, "0", kAllButNorms},
        Case{"TpSpAllButNormsFull", 2, Stream::tp_sp, 4, 128, 4, Recompute::full, "0", kAllButNorms},
        Case{"TpAllButLastDownFull", 2, Stream::tp, 4, 128, 4, Recompute::full, "0.1", kAllButLastDown}),
    [](const auto& info) { return info.param.name; });

/// Shards of every column-parallel input, and one term of [s, b, h] at a time.
TEST(PlanPeakFormulas, SharedMemoryHoldsColumnInputsAndOneTerm) {
  Workload workload;
  workload.config = model::preset("llama-3-8b");
  workload.tp = 8;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  workload.element_bytes = 2;
  const int64_t whole = 8192 * 4096 * 2;
  EXPECT_EQ(training_peak(workload, 0).shared_bytes(), (2 * 32 + 1) * whole / 8 + whole);
  workload.save_for_backward = SaveForBackward::shard;
  EXPECT_EQ(training_peak(workload, 0).shared_bytes(), 0);
}

/// Under TP the sum over the ranks that is the first block's input stays where it was made; dropout makes it
/// anew in ordinary memory. At the loss both models hold it, and no mask.
TEST(PlanPeakFormulas, FirstInputStaysInSharedMemoryUnderTp) {
  Workload workload;
  workload.config = model::preset("llama-3-8b");
  workload.tp = 8;
  workload.stream = Stream::tp;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  const int64_t whole = 8192 * 4096 * 4;
  const auto at_loss = [&](Pool pool) {
    for (const Instant& instant : fullest_instants(workload, 0)) {
      if (instant.name == "loss") return total(instant.entries, pool);
    }
    return int64_t{0};
  };
  const int64_t own = at_loss(Pool::own);
  EXPECT_EQ(at_loss(Pool::shared), whole);
  workload.has_dropout = true;
  EXPECT_EQ(at_loss(Pool::own) - own, whole);
  EXPECT_EQ(at_loss(Pool::shared), 0);
}

/// Everything but the head of a model without a backward but the head's: what the last block's MLP holds
/// before its sum, norm2's output among it, and nothing of the other blocks.
TEST(PlanPeakFormulas, FrozenModelIsFullestInForward) {
  Workload workload;
  workload.config = model::preset("llama-3-8b");
  workload.config.vocab_size = 256;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  workload.frozen = all_but(workload.config, {"lm_head"});
  const Peak peak = training_peak(workload, 0);
  EXPECT_EQ(peak.own.name, "down, forward");
  EXPECT_EQ(total(peak.own.entries), 8192 * (3 * 4096 + 3 * 14336) * 4);
}

/// Without shared memory two buffers of [s, b, h] live in a column-parallel backward when it gathers again;
/// on shared memory one.
TEST(PlanPeakFormulas, GatheringAgainNeedsTwoWholeBuffers) {
  Workload workload;
  workload.config = model::preset("llama-3-8b");
  workload.tp = 8;
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  const int64_t whole = 8192 * 4096 * 4, column_inputs = (2 * 32 + 1) * whole / 8;
  const auto bytes_in_head = [&] {
    for (const Instant& instant : fullest_instants(workload, 0)) {
      if (instant.name == "head") return total(instant.entries);
    }
    return int64_t{0};
  };
  const int64_t in_place = bytes_in_head();
  workload.save_for_backward = SaveForBackward::shard;
  EXPECT_EQ(bytes_in_head() - in_place, whole);
  workload.save_for_backward = SaveForBackward::gathered;
  EXPECT_EQ(bytes_in_head() - in_place, 7 * column_inputs);
}

/// 32 layers of a model whose vocabulary is small are fullest in the last block, few layers under many logits
/// at the loss.
TEST(PlanPeakFormulas, NamesTheFullestInstant) {
  Workload workload;
  workload.config = model::preset("llama-3-8b");
  workload.sequence_length = 8192;
  workload.batch_size = 1;
  EXPECT_EQ(training_peak(workload, 0).own.name, "loss");
  workload.config.vocab_size = 256;
  EXPECT_EQ(training_peak(workload, 0).own.name, "activation");
}

}  // namespace
}  // namespace shardwise::plan::peak_test
