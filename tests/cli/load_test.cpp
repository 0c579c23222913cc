// What generate, eval and train say of loading, each over two ranks: a line for people and `load` of --json.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "shardwise/io/writer.h"
#include "shardwise/model/config_tensors.h"
#include "tests/cli/called.h"
#include "tests/launch/program.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contains;
using testing::Program;
using testing::Scratch;
using Words = std::vector<std::string>;

/// A run's JSON document, and its standard error.
struct Ended {
  json document;
  std::string errors;
};

Ended ended(const std::string& command, const Words& flags, int tp = 2) {
  Words argv{SHARDWISE_PROGRAM, command, "--json", "--tp", std::to_string(tp)};
  argv.insert(argv.end(), flags.begin(), flags.end());
  Program program(argv, {.environment = {"SHARDWISE_THREADS=1"}});
  EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 0) << program.errors();
  return {json::parse(program.output()), program.errors()};
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

/// A model of 6 heads that reads bytes, two steps old, in scratch/model.
class LoadFigures : public ::testing::Test {
 protected:
  LoadFigures() {
    setenv("SHARDWISE_THREADS", "1", /*overwrite=*/1);
    testing::small_options(scratch_);
    const Said trained =
        call(training({"train", "--model-config", scratch_ / "config.json", "--save", model_}));
    EXPECT_EQ(trained.code, 0) << trained.errors;
  }

  Words training(Words words, const std::string& steps = "2") const {
    const Words more{"--text", scratch_ / "text", "--seq-len", "11", "--batch-size", "2", "--steps", steps};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  int64_t bytes_of(const char* file) const {
    return static_cast<int64_t>(fs::file_size(fs::path(model_) / "step-2" / file));
  }

  /// Two ranks' figures, which read all of `file_bytes` between them, and the same in one line.
  void expect_told(const std::string& command, const Ended& run, int64_t file_bytes) const {
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

  const Scratch scratch_;
  const std::string model_ = scratch_ / "model";
};

TEST_F(LoadFigures, AreToldByEveryCommandThatReadsWeights) {
  const int64_t weights = bytes_of("model.safetensors"), state = bytes_of("optimizer.safetensors");
  expect_told("generate", ended("generate", {"--model", model_, "--prompt", "line", "--max-new-tokens", "2"}),
              weights);
  expect_told("eval", ended("eval", {"--model", model_, "--text", scratch_ / "text"}), weights);
  expect_told("train", ended("train", training({"--init", model_})), weights);
  expect_told("train", ended("train", training({"--resume", model_}, "3")), weights + state);
}

TEST_F(LoadFigures, AreNotToldWhereNothingIsRead) {
  const Ended drawn = ended("train", training({"--model-config", scratch_ / "config.json"}));
  EXPECT_FALSE(drawn.document.contains("load"));
  EXPECT_FALSE(contains(drawn.errors, "train: read")) << drawn.errors;
  const Ended dummy = ended(
      "generate", {"--model", model_, "--load-format", "dummy", "--prompt", "line", "--max-new-tokens", "2"});
  EXPECT_EQ(dummy.document.at("load").at("bytes_read"), (json{0, 0}));
  EXPECT_FALSE(contains(dummy.errors, " MB in ")) << dummy.errors;
}

/// 200 MB of fp32.
model::Config large_config() {
  model::Config config;
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

struct FileBytes {
  int64_t header, all;
};

/// Its folder, with weights of zero. Returns what the safetensors file takes.
FileBytes put_zeros(const Scratch& folder, const model::Config& config) {
  std::vector<io::TensorSpec> specs;
  int64_t numbers = 0;
  for (const model::WholeTensor& tensor : model::stored_whole_tensors(config)) {
    specs.push_back({tensor.name, io::Dtype::F32, tensor.shape});
    numbers += tensor.numel();
  }
  folder.put("config.json", model::to_json(config));
  const int64_t all =
      io::SafetensorsWriter::create(folder / "model.safetensors", io::plan_file(specs)).layout().total_bytes;
  return {all - 4 * numbers, all};
}

// Whether the weights keep the file's dtype or are converted.
TEST(LoadCostOfALargeModel, IsTheFileOnceAndLittleMemory) {
  const model::Config config = large_config();
  const Scratch folder;
  const FileBytes file = put_zeros(folder, config);
  ASSERT_GT(file.all, 190'000'000);
  constexpr int64_t kBuffer = 8 << 20,
                    kAgreed = 4096;  // what conversion takes, and what ranks tell each other
  const int64_t replicated = (2 * config.num_hidden_layers + 1) * config.hidden_size * 4;  // the norms
  for (const char* dtype : {"fp32", "bf16"}) {
    SCOPED_TRACE(dtype);
    const json load = ended("generate", {"--model", folder.path(), "--prompt-ids", "5", "--max-new-tokens",
                                         "1", "--dtype", dtype})
                          .document.at("load");
    const std::vector<int64_t> read = load.at("bytes_read"), weights = load.at("weight_bytes"),
                               peaks = load.at("peak_bytes");
    ASSERT_EQ(read.size(), 2u);
    EXPECT_EQ(sum(read), file.all + file.header + replicated);  // once, but for what each of the two reads
    EXPECT_GT(load.at("seconds").get<double>(), 0);
    ASSERT_EQ(weights.size(), 2u);
    ASSERT_EQ(peaks.size(), 2u);
    for (const int rank : {0, 1}) {
      EXPECT_GE(peaks[rank], weights[rank]);
      EXPECT_LE(peaks[rank] - weights[rank], kBuffer + kAgreed) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace shardwise::cli
