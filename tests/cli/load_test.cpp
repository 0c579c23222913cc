// The load cost that generate, eval and train report at TP=2: a line on standard error, and `load` of --json.
#include <fmt/format.h>

#include <numeric>

#include "tests/checkpoint/stored_model.h"
#include "tests/cli/trained_model.h"

namespace shardwise::cli::load_test {
namespace {

/// The JSON document and the standard error of a run.
struct Ended {
  json document;
  std::string errors;
};

Ended ended(const std::string& command, Words words) {
  const Words first{command, "--json", "--tp", "2"};
  words.insert(words.begin(), first.begin(), first.end());
  const Outcome result = run(words);
  return {json::parse(result.output), result.errors};
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

class LoadFigures : public TrainedModel {
 protected:
  int64_t bytes_of(const char* file) const {
    return static_cast<int64_t>(fs::file_size(fs::path(model_) / "step-2" / file));
  }

  /// Expects that both ranks together read all of `file_bytes`, and that the line has the values of the JSON.
  void expect_reported(const std::string& command, const Ended& run, int64_t file_bytes) const {
    SCOPED_TRACE(command);
    const json& load = run.document.at("load");
    const std::vector<int64_t> read = load.at("bytes_read");
    ASSERT_EQ(read.size(), 2u);
    EXPECT_GE(sum(read), file_bytes);
    for (const int64_t of_rank : read) EXPECT_LT(of_rank, file_bytes);
    EXPECT_GT(load.at("seconds").get<double>(), 0);
    for (const char* field : {"weight_bytes", "peak_bytes"}) {
      ASSERT_EQ(load.at(field).size(), 2u) << field;
      for (const json& of_rank : load.at(field)) EXPECT_GT(of_rank.get<int64_t>(), 0) << field;
    }
    const std::string line =
        fmt::format("{}: read {:.2f}, {:.2f} MB in {:.2f} s from {}/step-2\n", command,
                    static_cast<double>(read[0]) / 1e6, static_cast<double>(read[1]) / 1e6,
                    load.at("seconds").get<double>(), model_);
    EXPECT_PRED2(contains, run.errors, line);
  }
};

TEST_F(LoadFigures, AreReportedByEveryCommandThatReadsWeights) {
  const int64_t weights = bytes_of("model.safetensors"), state = bytes_of("optimizer.safetensors");
  expect_reported("generate",
                  ended("generate", {"--model", model_, "--prompt", "line", "--max-new-tokens", "2"}),
                  weights);
  expect_reported("eval", ended("eval", {"--model", model_, "--text", scratch_ / "text"}), weights);
  expect_reported("train", ended("train", training({"--init", model_})), weights);
  expect_reported("train", ended("train", training({"--resume", model_}, "3")), weights + state);
}

TEST_F(LoadFigures, AreNotReportedIfNothingIsRead) {
  const Ended drawn = ended("train", training({"--model-config", scratch_ / "config.json"}));
  EXPECT_FALSE(drawn.document.contains("load"));
  EXPECT_FALSE(contains(drawn.errors, "train: read")) << drawn.errors;
  const Ended dummy = ended(
      "generate", {"--model", model_, "--load-format", "dummy", "--prompt", "line", "--max-new-tokens", "2"});
  EXPECT_EQ(dummy.document.at("load").at("bytes_read"), (json{0, 0}));
  EXPECT_FALSE(contains(dummy.errors, " MB in ")) << dummy.errors;
}

/// 200 MB of fp32.
config::Config large_config() {
  config::Config config;
  config.vocab_size = 16000;
  config.hidden_size = 512;
  config.intermediate_size = 2048;
  config.num_hidden_layers = 8;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 8;
  config.head_dim = 64;
  config.max_position_embeddings = 64;
  return config;
}

// Covers weights that keep the file's dtype and weights that are converted.
TEST(LoadOfALargeModel, ReadsTheFileOnceWithLittleExtraMemory) {
  const config::Config config = large_config();
  const Scratch directory;
  const testing::FileBytes file = testing::put_zeros(directory.path(), config);
  ASSERT_GT(file.all, 190'000'000);
  constexpr int64_t kBuffer = 1 << 20,
                    kExchanged = 4096;  // the buffer of the conversion, and the data that ranks exchange
  const int64_t replicated = (2 * config.num_hidden_layers + 1) * config.hidden_size * 4;  // the norms
  for (const char* dtype : {"fp32", "bf16"}) {
    SCOPED_TRACE(dtype);
    const json load = ended("generate", {"--model", directory.path(), "--prompt-ids", "5", "--max-new-tokens",
                                         "1", "--dtype", dtype})
                          .document.at("load");
    const std::vector<int64_t> read = load.at("bytes_read"), weights = load.at("weight_bytes"),
                               peaks = load.at("peak_bytes");
    ASSERT_EQ(read.size(), 2u);
    EXPECT_EQ(sum(read), file.all + file.header +
                             replicated);  // each byte once, except header and norms, which both ranks read
    EXPECT_GT(load.at("seconds").get<double>(), 0);
    ASSERT_EQ(weights.size(), 2u);
    ASSERT_EQ(peaks.size(), 2u);
    for (const int rank : {0, 1}) {
      EXPECT_GE(peaks[rank], weights[rank]);
      EXPECT_LE(peaks[rank] - weights[rank], kBuffer + kExchanged) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace shardwise::cli::load_test
