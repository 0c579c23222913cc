// `shardwise doctor` as a program: ranks as processes, exit codes, output.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/model/names.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/launch/program.h"
#include "tests/support/deadline.h"
#include "tests/train/runs.h"

namespace shardwise::cli::doctor_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Program;
using Words = std::vector<std::string>;

constexpr double kLimit = 120;  // seconds, on a busy machine

/// A directory with a small model's config.json, without weights.
class DoctorCommand : public ::testing::Test {
 protected:
  DoctorCommand() {
    scratch_.put("model/config.json", config::to_json(testing::small_byte_config()));
    scratch_.put("text", testing::sample_text());
  }

  Words doctor(const Words& more) const { return doctor_of(model_, more); }
  static Words doctor_of(const std::string& model, const Words& more) {
    Words argv{SHARDWISE_PROGRAM, "doctor", "--model", model, "--tp", "2", "--seq-len", "11"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }

  /// Writes weights that are all 0.25 except for one.
  void put_weights_with_outlier(float outlier) const {
    testing::StoredTensors stored;
    for (const model::StoredTensor& tensor : model::stored_tensors(testing::small_byte_config(), /*tp=*/1)) {
      std::vector<float> values(static_cast<size_t>(c10::multiply_integers(tensor.shape)), 0.25F);
      if (tensor.name == "model.layers.1.mlp.down_proj.weight") values[3] = outlier;
      stored[tensor.name] = {
          "F32", tensor.shape, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}};
    }
    scratch_.put("model/model.safetensors", testing::safetensors_of(stored));
  }

  const Program::Options one_thread_{.environment = {"SHARDWISE_THREADS=1"}};
  const testing::Scratch scratch_;
  const std::string model_ = scratch_ / "model";
};

TEST_F(DoctorCommand, ReportsRoundingForACorrectModel) {
  Program program(doctor({"--load-format", "dummy", "--json"}), one_thread_);
  ASSERT_EQ(testing::exit_code(program.wait(kLimit)), 0) << program.errors();
  const json report = json::parse(program.output());
  EXPECT_EQ(report["verdict"], "rounding");
  EXPECT_EQ(report["bug"], nullptr);
  EXPECT_EQ(report["tp"], 2);
  EXPECT_EQ(report["dtype"], "fp32");
  EXPECT_EQ(report["seq_len"], 11);
  EXPECT_EQ(report["comparisons"].size(),
            12);  // 2 test cases x TP, TP+SP x 2 dtypes; saved, re-gathered, 2 x recomputed
  for (const json& comparison : report["comparisons"]) {
    EXPECT_TRUE(comparison["passed"]) << comparison;
    EXPECT_EQ(comparison["layers"].size(), 6);  // embedding, 2 layers, norm, head, loss
    EXPECT_EQ(comparison["layers"][1]["module"], "layer 0");
    EXPECT_LE(comparison["layers"][1]["gradients"]["difference"],
              comparison["layers"][1]["gradients"]["bound"]);
  }
  for (const json& check : report["checks"]) EXPECT_TRUE(check["passed"]) << check;
  EXPECT_FALSE(report["traffic"].empty());
  for (const json& line : report["traffic"]) EXPECT_EQ(line["bytes"], line["expected_bytes"]) << line;
}

TEST_F(DoctorCommand, PrintsLinesAndReadsTextInBf16) {
  Program other(doctor({"--load-format", "dummy", "--dtype", "bf16", "--text", scratch_ / "text"}),
                one_thread_);
  ASSERT_EQ(testing::exit_code(other.wait(kLimit)), 0) << other.errors();
  EXPECT_TRUE(other.output().ends_with("\nrounding: TP=2 and TP=2+SP match TP=1 within rounding\n"))
      << other.output();
  EXPECT_EQ(other.output().find('\x1b'), std::string::npos);
}

/// A weight of 3e38 is reported as a bug without a fault in the code: sums lose all smaller summands, and
/// each order of summands gives another result. Rounding decides which result is reported first.
TEST_F(DoctorCommand, ExitsWithCode3IfACheckFails) {
  put_weights_with_outlier(3e38F);
  Program program(doctor({"--json"}), one_thread_);
  EXPECT_EQ(testing::exit_code(program.wait(kLimit)), 3) << program.errors();
  EXPECT_EQ(program.errors(), "");
  const json report = json::parse(program.output());
  EXPECT_EQ(report["verdict"], "bug");
  EXPECT_TRUE(report["bug"].get<std::string>().starts_with("bug at ")) << report["bug"];
}

TEST_F(DoctorCommand, RejectsNaNWeights) {
  put_weights_with_outlier(std::nanf(""));
  Program program(doctor({"--json"}), one_thread_);
  EXPECT_EQ(testing::exit_code(program.wait(kLimit)), 2);
  EXPECT_EQ(program.errors(), "shardwise: " + model_ +
                                  "/model.safetensors: model.layers.1.mlp.down_proj.weight must be finite; "
                                  "got nan\n");
  EXPECT_EQ(program.output(), "");
}

/// The training smoke test's directory is removed however the job ends.
class DoctorDirectory : public DoctorCommand {
 protected:
  DoctorDirectory() { fs::create_directory(temporary_); }

  bool is_empty() const { return fs::is_empty(temporary_); }
  void wait_until_it_exists() const {
    const base::Stopwatch watch;
    while (is_empty() && watch.seconds() < testing::scaled_s(testing::kStartLimit)) usleep(1000);
    ASSERT_FALSE(is_empty());
  }

  /// A job that would take a minute, so that it does not end before its signal comes.
  Words long_job() const {
    config::Config config = testing::small_byte_config();
    config.num_hidden_layers = 200;
    scratch_.put("large/config.json", config::to_json(config));
    return doctor_of(scratch_ / "large", {"--load-format", "dummy"});
  }

  const std::string temporary_ = scratch_ / "temporary", mark_ = "DOCTOR_DIRECTORY=" + temporary_;
  const Program::Options options_{.environment = {"SHARDWISE_THREADS=1", "TMPDIR=" + temporary_, mark_}};
};

TEST_F(DoctorDirectory, IsRemovedAtTheEnd) {
  Program program(doctor({"--load-format", "dummy"}), options_);
  wait_until_it_exists();
  EXPECT_EQ(testing::exit_code(program.wait(kLimit)), 0) << program.errors();
  EXPECT_TRUE(is_empty());
}

TEST_F(DoctorDirectory, IsRemovedAfterASignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const bool has_ranks : {false, true}) {
      Program program(long_job(), options_);
      wait_until_it_exists();
      if (has_ranks) testing::pid_of_rank(1, mark_);
      program.send(signal);
      EXPECT_EQ(testing::exit_code(program.wait(kLimit)), 128 + signal) << program.errors();
      EXPECT_TRUE(is_empty());
      EXPECT_TRUE(testing::processes_with(mark_).empty());
    }
  }
}

TEST_F(DoctorDirectory, IsRemovedAfterARankDies) {
  Program program(long_job(), options_);
  testing::send_to(testing::pid_of_rank(1, mark_), SIGKILL);
  EXPECT_EQ(testing::exit_code(program.wait(kLimit)), 1) << program.errors();
  EXPECT_TRUE(is_empty());
}

}  // namespace
}  // namespace shardwise::cli::doctor_test
