// The program on the emulated device: alone and on two ranks it gives what it gives on the CPU, and a
// checkpoint of one device goes on on the other.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/base/files.h"
#include "tests/cli/trained_model.h"
#include "tests/device/device.h"

namespace shardwise::device_test {
namespace {

using nlohmann::json;
using test::contains;
using testing::Program;
using Words = std::vector<std::string>;

class DeviceProgram : public cli::TrainedModel {
 protected:
  Words train_words(const Words& more) const {
    Words words = training({"train", "--model-config", scratch_ / "config.json"}, "4");
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Returns the losses of a run with these flags, from its log.
  std::vector<double> losses(Words more) const {
    const std::string log = scratch_ / ("log" + std::to_string(logs_++));
    more.insert(more.end(), {"--log", log});
    cli::run(train_words(more));
    return losses_in(log);
  }
  static std::vector<double> losses_in(const std::string& log) {
    std::vector<double> losses;
    std::istringstream lines(base::read_text(log));
    for (std::string line; std::getline(lines, line);) {
      const json record = json::parse(line);
      if (record.contains("loss")) losses.push_back(record["loss"]);
    }
    return losses;
  }
  Words generate_words(const std::string& model, const Words& more) const {
    Words words{"generate", "--model", model, "--prompt", "line 1", "--max-new-tokens", "6", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  mutable int logs_ = 0;
};

const std::string kDevice = testing::device_name();
constexpr double kTolerance = 1e-5;  // as in training_test.cpp

TEST_F(DeviceProgram, TrainsOnRanksAsOnTheCpu) {
  for (const char* mode : {"--sequence-parallel", "--no-sequence-parallel"}) {
    SCOPED_TRACE(mode);
    const std::vector<double> expected = losses({mode, "--tp", "1"});
    ASSERT_EQ(expected.size(), 4);
    for (const std::string& tp : testing::device_ranks())
      testing::expect_close(losses({mode, "--tp", tp, "--device", kDevice}), expected, kTolerance);
  }
  testing::expect_close(losses({"--tp", testing::device_ranks().back(), "--device", kDevice, "--verify"}),
                        losses({}), kTolerance);
}

/// With dropout, whose masks are the same on every device and number of ranks.
TEST_F(DeviceProgram, GoesOnWithACheckpointOfAnotherDevice) {
  const Words with_dropout{"--dropout", "0.1", "--attention-dropout", "0.1"};
  const std::vector<double> expected = losses(with_dropout);
  const std::vector<std::pair<std::string, std::string>> changes{{"cpu", kDevice}, {kDevice, "cpu"}};
  for (const auto& [first, second] : changes) {
    SCOPED_TRACE(first + " then " + second);
    const std::string directory = scratch_ / ("saved on " + first);
    Words words = with_dropout;
    words.insert(words.end(), {"--save", directory, "--stop-after", "2", "--device", first});
    std::vector<double> all = losses(words);
    const std::string log = scratch_ / ("resumed on " + second);
    cli::run({"train", "--text", scratch_ / "text", "--resume", directory, "--save", directory, "--tp",
              second == "cpu" ? "2" : testing::device_ranks().back(), "--device", second, "--log", log});
    const std::vector<double> resumed = losses_in(log);
    all.insert(all.end(), resumed.begin(), resumed.end());
    testing::expect_close(all, expected, kTolerance);
  }
}

TEST_F(DeviceProgram, GeneratesWhatTheCpuGenerates) {
  for (const Words& sampling :
       {Words{"--temperature", "0"},
        {"--temperature", "0.9", "--seed", "3"},
        {"--temperature", "0.9", "--seed", "4", "--top-k", "9", "--repetition-penalty", "1.3"}}) {
    const auto tokens = [&](Words more) {
      more.insert(more.end(), sampling.begin(), sampling.end());
      return json::parse(cli::run(generate_words(model_, more)).output).at("token_ids");
    };
    const json expected = tokens({});
    EXPECT_EQ(expected.size(), 6);
    for (const std::string& tp : testing::device_ranks())
      EXPECT_EQ(tokens({"--device", kDevice, "--tp", tp}), expected);
    if (testing::device_ranks().size() > 1) EXPECT_EQ(tokens({"--device", kDevice, "--pp", "2"}), expected);
  }
}

TEST_F(DeviceProgram, GeneratesFromQuantizedWeights) {
  for (const Words& weights :
       {Words{"--quantize", "int8", "--head", "int8"}, {"--quantize", "int4", "--group-size", "32"}}) {
    const auto tokens = [&](Words more) {
      more.insert(more.end(), weights.begin(), weights.end());
      return json::parse(cli::run(generate_words(model_, more)).output).at("token_ids");
    };
    const json expected = tokens({});
    for (const std::string& tp : testing::device_ranks())
      EXPECT_EQ(tokens({"--device", kDevice, "--tp", tp}), expected);
  }
}

TEST_F(DeviceProgram, GeneratesWithAnInt8Cache) {
  const auto tokens = [&](const Words& more) {
    Words words = generate_words(model_, {"--kv-cache-dtype", "int8"});
    words.insert(words.end(), more.begin(), more.end());
    return json::parse(cli::run(words).output).at("token_ids");
  };
  const json expected = tokens({});
  for (const std::string& tp : testing::device_ranks())
    EXPECT_EQ(tokens({"--device", kDevice, "--tp", tp}), expected);
}

TEST_F(DeviceProgram, EvaluatesAsOnTheCpu) {
  const auto nll = [&](const Words& more) {
    Words words{"eval", "--model", model_, "--text", scratch_ / "config.json", "--seq-len", "32", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return json::parse(cli::run(words).output).at("nll").get<double>();
  };
  const double expected = nll({});
  for (const std::string& tp : testing::device_ranks())
    EXPECT_NEAR(nll({"--device", kDevice, "--tp", tp}), expected, kTolerance * expected);
}

// The doctor needs two ranks.
TEST_F(DeviceProgram, PassesTheDoctor) {
  const auto report = [&](const char* dtype) {
    return json::parse(
        cli::run({"doctor", "--model", model_, "--tp", "2", "--device", kDevice, "--dtype", dtype, "--json"})
            .output);
  };
  for (const char* dtype : {"fp32", "bf16"}) {
    const json document = report(dtype);
    EXPECT_EQ(document.at("bug"), json(nullptr));
    std::vector<std::string> runs;
    const json* on_cpu = nullptr;
    for (const json& comparison : document.at("comparisons")) {
      if (!contains(comparison.at("run_config"), kDevice)) {
        on_cpu = &comparison;
        continue;
      }
      // Sums in another order: a run on the CPU in its place would have the same differences.
      if (dtype == std::string("fp32")) EXPECT_NE(comparison.at("layers"), on_cpu->at("layers"));
      EXPECT_EQ(comparison.at("dtype"), dtype);
      runs.push_back(comparison.at("test_case").get<std::string>() + ", " +
                     comparison.at("run_config").get<std::string>());
    }
    EXPECT_EQ(runs, (Words{"plain, TP=2 on " + kDevice, "plain, TP=2+SP on " + kDevice,
                           "training, TP=2 on " + kDevice, "training, TP=2+SP on " + kDevice}));
  }
}

TEST_F(DeviceProgram, CountsTheBytesOfTheCpu) {
  const auto sent = [&](const Words& more) {
    const std::string report = scratch_ / ("report" + std::to_string(logs_++));
    Words words = train_words({"--tp", "2", "--report", report});
    words.insert(words.end(), more.begin(), more.end());
    cli::run(words);
    std::vector<int64_t> bytes;
    for (const json& rank : json::parse(base::read_text(report)).at("ranks")) {
      bytes.push_back(rank.at("comm_bytes"));
      EXPECT_EQ(bytes.back(), rank.at("expected_comm_bytes").get<int64_t>());
    }
    return bytes;
  };
  EXPECT_EQ(sent({"--device", "emulated"}), sent({}));
}

TEST_F(DeviceProgram, RefusesWhatADeviceLacks) {
  expect_refused(train_words({"--device", "gpu"}),
                 {"train: --device must be one of auto, cpu, cuda, emulated; got gpu"});
  const std::string packed = scratch_ / "packed";
  cli::run({"shard", model_, packed, "--tp", "1", "--packed", "--quantize", "int8"});
  expect_refused(generate_words(packed, {"--device", "cuda"}),
                 {"generate: weights packed for a processor must be on the CPU; got cuda; use --device cpu"});
}

/// Without a GPU, or without the plugin of GPUs.
TEST_F(DeviceProgram, SaysInOneLineThatThereIsNoGpu) {
  for (const char* tp : {"1", "2"}) {
    Words words = train_words({"--device", "cuda", "--tp", tp});
    words.insert(words.begin(), SHARDWISE_PROGRAM);
    Program program(words, {.environment = {"CUDA_VISIBLE_DEVICES="}});
    EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 2);
    EXPECT_EQ(program.errors().find("shardwise: --device cuda: "), 0) << program.errors();
    EXPECT_EQ(std::ranges::count(program.errors(), '\n'), 1) << program.errors();
  }
}

TEST_F(DeviceProgram, RefusesAPluginOfAnotherVersion) {
  Words words = train_words({"--device", "emulated"});
  words.insert(words.begin(), SHARDWISE_PROGRAM);
  Program program(words, {.environment = {"LD_LIBRARY_PATH=" OTHER_VERSION_DIRECTORY}});
  EXPECT_EQ(testing::exit_code(program.wait(testing::kStartLimit)), 2);
  EXPECT_PRED2(contains, program.errors(), "got shardwise_emulated.so of version 0.0.0; rebuild it");
}

TEST_F(DeviceProgram, SaysWhatDidNotFitAndWhatWasPlanned) {
  testing::on_device();
  testing::set_emulated_capacity(100'000);
  const cli::Outcome result = cli::call(train_words({"--device", "emulated"}));
  testing::set_emulated_capacity(int64_t{1} << 32);
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.output, "");
  EXPECT_PRED2(contains, result.errors,
               "train: the device's memory must hold the run; got: emulated:0 is out of memory: asked for ");
  EXPECT_PRED2(contains, result.errors, " of 100000 bytes are free; planned peak memory: ");
}

}  // namespace
}  // namespace shardwise::device_test
