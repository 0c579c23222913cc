// `shardwise train` as a program: output files, logs, and how it starts its ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "shardwise/cli/program.h"
#include "tests/cli/train_program.h"
#include "tests/support/error_text.h"

namespace shardwise::cli::train_test {
namespace {

using namespace shardwise::testing;
using test::contains;

TEST_F(TrainProgram, StartsItsRanksAndReportsThem) {
  Program program(argv({"--tp", "2", "--json", "--log", scratch_ / "log", "--save", scratch_ / "saved",
                        "--val-fraction", "0.2", "--eval-every", "2"}),
                  kOneThread);
  expect_success(program);
  const json summary = json::parse(program.output());
  EXPECT_EQ(summary["step"], 4);
  EXPECT_EQ(summary["tokens"], 4 * 2 * 11);
  EXPECT_EQ(summary["saved"], scratch_ / "saved/step-4");
  ASSERT_EQ(summary["ranks"].size(), 2u);
  for (const json& rank : summary["ranks"]) {
    EXPECT_GT(rank["comm_bytes"], 0);
    EXPECT_EQ(rank["comm_bytes"], rank["expected_comm_bytes"]);
    EXPECT_GT(rank["peak_memory_bytes"], 0);
  }
  const std::vector<json> log = steps_in(scratch_ / "log");
  ASSERT_EQ(log.size(), 4u);
  for (const char* field : {"step", "tokens", "loss", "grad_norm", "lr", "tokens_per_s", "step_ms", "comm_ms",
                            "comm_bytes", "copied_bytes", "peak_memory_bytes"}) {
    EXPECT_TRUE(log[0].contains(field) && log[0][field].is_number()) << field;
  }
  EXPECT_TRUE(log[1].contains("val_loss"));
  EXPECT_FALSE(log[2].contains("val_loss"));
  EXPECT_PRED2(contains, program.errors(), "step 4/4");
  EXPECT_PRED2(contains, program.errors(), "\nrank  peak memory");  // a line of its own
}

/// Checks that the planned memory of each rank is within 5 % of the measured one, in sum and in shared
/// memory.
void expect_measured(const json& planned, const json& summary) {
  ASSERT_EQ(planned.size(), summary["ranks"].size());
  for (const json& rank : planned) {
    const json& measured = summary["ranks"][rank["rank"].get<size_t>()];
    const double shared = rank["symmetric_heap_bytes"], all = rank["bytes"];
    EXPECT_EQ(all, shared + rank["private_bytes"].get<double>());
    EXPECT_EQ(all, measured["expected_peak_memory_bytes"]);
    EXPECT_NEAR(measured["peak_memory_bytes"].get<double>() / all, 1, 0.05);
    EXPECT_NEAR(measured["peak_symmetric_heap_bytes"].get<double>(), shared, 0.05 * shared);
  }
}

TEST_F(TrainProgram, PrintsThePlannedMemoryBeforeTheFirstStep) {
  for (const char* tp : {"1", "2"}) {
    SCOPED_TRACE(tp);
    const std::string log = scratch_ / (std::string("log") + tp);
    Program program({SHARDWISE_PROGRAM, "train", "--text", scratch_ / "text", "--preset", "tiny", "--seq-len",
                     "128", "--batch-size", "2", "--steps", "2", "--tp", tp, "--log", log, "--json"},
                    kOneThread);
    expect_success(program);
    const size_t printed = program.errors().find("train: planned peak memory: ");
    EXPECT_LT(printed, program.errors().find("step 1/2")) << program.errors();
    const json summary = json::parse(program.output()), planned = summary["expected_memory"];
    expect_measured(planned, summary);
    EXPECT_EQ(program.output().find("{\"expected_memory\""), 0u);
    const std::vector<json> lines = json_lines(test::contents(log));
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[0], (json{{"expected_memory", planned}}));
    EXPECT_EQ(lines[1]["step"], 1);
  }
}

TEST_F(TrainProgram, AFailedStandardOutputIsAFailure) {
  const auto run = [](const std::vector<std::string>& command, const std::string& output = "/dev/full") {
    std::vector<std::string> argv{"/bin/sh", "-c", "exec \"$@\" >" + output, "sh"};
    argv.insert(argv.end(), command.begin(), command.end());
    Program program(argv, kOneThread);
    const int status = program.wait(60);
    EXPECT_EQ(exit_code(status), 1) << command[1];
    const std::string errors = program.errors();
    EXPECT_PRED2(contains, errors, "standard output: must be writable") << command[1];
    return errors;
  };
  EXPECT_PRED2(contains, run(argv({"--json", "--tp", "2", "--save", scratch_ / "saved"})), "4 steps in");
  run({SHARDWISE_PROGRAM, "generate", "--model", scratch_ / "saved", "--prompt", "line", "--max-new-tokens",
       "4"});
  for (const char* tp : {"1", "2"}) {  // closed: no file or shared memory opened later may get its descriptor
    run({SHARDWISE_PROGRAM, "generate", "--model", scratch_ / "saved", "--prompt", "line", "--tp", tp}, "&-");
    run({SHARDWISE_PROGRAM, "eval", "--model", scratch_ / "saved", "--text", scratch_ / "text", "--tp", tp},
        "&-");
  }
  const std::string errors = run({SHARDWISE_PROGRAM, "train", "--help"});
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
}

TEST_F(TrainProgram, SentBytesMatchThePlan) {
  for (const char* stream : {"--sequence-parallel", "--no-sequence-parallel"}) {
    for (const char* tp : {"1", "3"}) {
      SCOPED_TRACE(std::string(stream) + " tp " + tp);
      Program program(argv({"--tp", tp, stream, "--json", "--grad-accum", "2", "--dtype", "bf16"}),
                      kOneThread);
      expect_success(program);
      for (const json& rank : ranks_in(program.output())) {
        EXPECT_EQ(rank["comm_bytes"], rank["expected_comm_bytes"]);
        EXPECT_EQ(rank["comm_bytes"] > 0, std::string(tp) != "1");
      }
    }
  }
}

// Recomputation changes no loss, and the planned bytes include it.
TEST_F(TrainProgram, RecomputationGivesTheSameLosses) {
  std::vector<double> expected;
  for (const char* mode : {"none", "selective", "full"}) {
    SCOPED_TRACE(mode);
    Program program(argv({"--tp", "2", "--json", "--recompute", mode, "--dropout", "0.1", "--log",
                          scratch_ / mode, "--label-smoothing", "0.1", "--z-loss", "1e-4"}),
                    kOneThread);
    expect_success(program);
    for (const json& rank : ranks_in(program.output()))
      EXPECT_EQ(rank["comm_bytes"], rank["expected_comm_bytes"]);
    if (expected.empty()) expected = losses_in(scratch_ / mode);
    EXPECT_EQ(losses_in(scratch_ / mode), expected);
  }
  EXPECT_EQ(expected.size(), 4u);
}

// With a learning rate too small to change the weights, the validation loss does not depend on the terms that
// training adds to the loss.
TEST_F(TrainProgram, ValidationUsesThePlainLoss) {
  const auto run = [&](const std::vector<std::string>& options) {
    std::vector<std::string> flags{"--json", "--lr", "1e-12", "--weight-decay", "0", "--val-fraction", "0.2"};
    flags.insert(flags.end(), options.begin(), options.end());
    Program program(argv(flags), kOneThread);
    expect_success(program);
    return json::parse(program.output());
  };
  const json plain = run({}), smoothed = run({"--label-smoothing", "0.5"}), squared = run({"--z-loss", "1"});
  EXPECT_NE(smoothed["loss"], plain["loss"]);
  EXPECT_GT(squared["loss"], plain["loss"].get<double>() + 1);  // the square of about log v
  for (const json& other : {smoothed, squared})
    EXPECT_NEAR(other["val_loss"].get<double>(), plain["val_loss"].get<double>(), 1e-6);
}

// Of 12 to 22 tokens, which are bytes.
TEST_F(TrainProgram, ValidatesOnASingleWindow) {
  const auto bytes = double(std::filesystem::file_size(small_options(scratch_).text.at(0)));
  Program program(argv({"--json", "--val-fraction", std::to_string(17 / bytes)}), kOneThread);
  expect_success(program);
  const json summary = json::parse(program.output());
  EXPECT_TRUE(summary["val_loss"].is_number()) << summary;
}

TEST_F(TrainProgram, RejectsFreezingUnknownTensors) {
  Program program(argv({"--tp", "2", "--freeze", "transformer.*"}), kOneThread);
  EXPECT_EQ(exit_code(program.wait(60)), 2);
  const std::string errors = program.errors();
  EXPECT_PRED2(contains, errors, "--freeze must match tensors of the model");
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
}

TEST_F(TrainProgram, FlagsOverrideTheFileAndTpNamesAreAliases) {
  const std::string file = scratch_.put("flags.json", json{{"steps", 9},
                                                           {"lr", 0.5},
                                                           {"tensor-parallel-size", 2},
                                                           {"no_sequence_parallel", true},
                                                           {"log", scratch_ / "from_file"},
                                                           {"weight_decay", 0}}
                                                          .dump());
  Program from_file(argv({"--config", file, "--lr", "0.01", "--json"}), kOneThread);  // with --steps 4
  expect_success(from_file);
  Program from_flags(argv({"--lr", "0.01", "--tp-size", "2", "--no-sequence-parallel", "--weight-decay", "0",
                           "--log", scratch_ / "from_flags"}),
                     kOneThread);
  expect_success(from_flags);
  EXPECT_EQ(losses_in(scratch_ / "from_file"), losses_in(scratch_ / "from_flags"));
  EXPECT_EQ(json::parse(from_file.output())["ranks"].size(), 2u);
}

TEST_F(TrainProgram, ResumingAppendsToTheLog) {
  Program once(argv({"--tp", "2", "--log", scratch_ / "once", "--attention-dropout", "0.1"}), kOneThread);
  expect_success(once);
  const std::vector<std::string> common{
      "--log", scratch_ / "parts", "--save", scratch_ / "saved", "--attention-dropout", "0.1"};
  std::vector<std::string> first = argv(common), second = argv(common);
  first.insert(first.end(), {"--stop-after", "2", "--tp", "1"});
  second.insert(second.end(), {"--resume", scratch_ / "saved", "--tp", "3"});
  Program begins(first, kOneThread);
  expect_success(begins);
  Program goes_on(second, kOneThread);
  expect_success(goes_on);
  expect_close(losses_in(scratch_ / "parts"), losses_in(scratch_ / "once"));
}

// A save was killed between the rename of step-2 and the link to it.
TEST_F(TrainProgram, ResumesWithoutALinkAndEveryCommandSaysSoOnce) {
  config::Config config = small_byte_config();
  config.intermediate_size = 40;  // quantize --bits 8 packs four values in a word
  scratch_.put("config.json", config::to_json(config));
  Program killed(argv({"--stop-after", "2", "--save", scratch_ / "saved"}), kOneThread);
  expect_success(killed);
  std::filesystem::remove(scratch_ / "saved/latest");
  const auto expect_says_so_once = [&](const std::vector<std::string>& command, const std::string& name) {
    Program program(command, kOneThread);
    expect_success(program);
    const std::string warning = "warning: " + name + ": " + scratch_ / "saved" + " should have a link latest";
    EXPECT_EQ(program.wait_for_lines(warning, 1).size(), 1u) << program.errors();
    EXPECT_PRED2(contains, program.errors(), "its newest checkpoint is used, step-2");
  };
  expect_says_so_once({SHARDWISE_PROGRAM, "generate", "--model", scratch_ / "saved", "--tp", "2", "--prompt",
                       "a", "--max-new-tokens", "1"},
                      "generate");
  expect_says_so_once({SHARDWISE_PROGRAM, "merge", scratch_ / "saved", scratch_ / "merged"}, "merge");
  expect_says_so_once(
      {SHARDWISE_PROGRAM, "quantize", scratch_ / "saved", scratch_ / "quantized", "--bits", "8"}, "quantize");
  expect_says_so_once({SHARDWISE_PROGRAM, "inspect", scratch_ / "saved"}, "inspect");
  expect_says_so_once(argv({"--init", scratch_ / "saved", "--tp", "2"}), "train");
  expect_says_so_once(argv({"--resume", scratch_ / "saved", "--tp", "2", "--save", scratch_ / "saved"}),
                      "train");
  EXPECT_EQ(std::filesystem::read_symlink(scratch_ / "saved/latest"), "step-4");
}

TEST_F(TrainProgram, ResumingNeedsNoOtherFlagAndSaysWhatTheOthersChange) {
  const std::vector<std::string> settings{"--seed",    "3",   "--beta2", "0.9",
                                          "--dropout", "0.1", "--lr",    "0.02"};
  std::vector<std::string> once = argv({"--log", scratch_ / "once"}), first = argv({"--stop-after", "2"});
  once.insert(once.end(), settings.begin(), settings.end());
  first.insert(first.end(), settings.begin(), settings.end());
  first.insert(first.end(), {"--save", scratch_ / "saved", "--log", scratch_ / "parts"});
  for (const auto& command : {once, first}) {
    Program program(command, kOneThread);
    expect_success(program);
  }
  const std::vector<std::string> resume{SHARDWISE_PROGRAM, "train",           "--text",
                                        scratch_ / "text", "--resume",        scratch_ / "saved",
                                        "--log",           scratch_ / "parts"};
  Program rest(resume, kOneThread);
  expect_success(rest);
  EXPECT_EQ(losses_in(scratch_ / "parts"), losses_in(scratch_ / "once"));
  EXPECT_FALSE(contains(rest.errors(), "changes settings")) << rest.errors();
  std::vector<std::string> longer = resume;
  longer.insert(longer.end(), {"--steps", "6", "--tp", "2"});
  Program changed(longer, kOneThread);
  expect_success(changed);
  const std::string line = "train: changes settings of the resumed run: --steps from 4 to 6\n";
  EXPECT_PRED2(contains, changed.errors(), line);
  EXPECT_EQ(changed.errors().find(line), changed.errors().rfind(line)) << "once, not on every rank";
  std::filesystem::remove(scratch_ / "saved/step-2/training.json");
  std::vector<std::string> older = resume;
  older.insert(older.end(), {"--resume", scratch_ / "saved/step-2", "--steps", "5"});
  Program warned(older, kOneThread);
  expect_success(warned);
  EXPECT_PRED2(contains, warned.errors(), "warning: train: " + scratch_ / "saved/step-2" + " should have");
}

TEST_F(TrainProgram, ALogHasEveryStepOnceAlsoAfterAResumeFromAnOlderStep) {
  const std::vector<std::string> common{
      "--log", scratch_ / "log", "--save", scratch_ / "saved", "--save-every", "1"};
  std::vector<std::string> first = argv(common), second = argv(common);
  first.insert(first.end(), {"--stop-after", "3"});
  Program begins(first, kOneThread);
  expect_success(begins);
  for (const char* later : {"saved/step-2", "saved/step-3"}) std::filesystem::remove_all(scratch_ / later);
  second.insert(second.end(), {"--resume", scratch_ / "saved/step-1"});
  Program goes_on(second, kOneThread);
  expect_success(goes_on);
  EXPECT_PRED2(contains, goes_on.errors(),
               "train: --log " + scratch_ / "log" + ": removed 2 steps after step 1, which this run repeats");
  std::vector<int64_t> steps;
  for (const json& record : steps_in(scratch_ / "log")) steps.push_back(record["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST_F(TrainProgram, AResumedLogHasNoPartOfALine) {
  const std::vector<std::string> common{"--log", scratch_ / "log", "--save", scratch_ / "saved"};
  std::vector<std::string> first = argv(common), second = argv(common);
  first.insert(first.end(), {"--stop-after", "2"});
  Program begins(first, kOneThread);
  expect_success(begins);
  std::ofstream(scratch_ / "log", std::ios::app) << "{\"step\":3,\"lo";
  second.insert(second.end(), {"--resume", scratch_ / "saved"});
  Program goes_on(second, kOneThread);
  expect_success(goes_on);
  std::vector<int64_t> steps;
  for (const json& record : steps_in(scratch_ / "log")) steps.push_back(record["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST_F(TrainProgram, ReadsItsRankFromTorchrun) {
  const auto of_rank = [](int rank, int size) -> Program::Options {
    return {.environment = testing::torchrun_environment(rank, size, "train")};
  };
  const auto command = argv({"--tp", "2", "--json"});
  Program rank0(command, of_rank(0, 2)), rank1(command, of_rank(1, 2));
  expect_success(rank0);
  expect_success(rank1);
  EXPECT_EQ(json::parse(rank0.output())["ranks"].size(), 2u);
  EXPECT_EQ(rank1.output(), "");
  Program alone(command, of_rank(0, 1));
  EXPECT_EQ(exit_code(alone.wait()), 2);
  EXPECT_PRED2(contains, alone.errors(), "product of the degrees");
}

TEST_F(TrainProgram, RejectsMoreRanksOfTorchrunThanAGroupMayHave) {
  config::Config config = testing::small_byte_config();
  config.num_attention_heads = config.num_key_value_heads = 241;
  config.hidden_size = 2 * 241;
  scratch_.put("config.json", config::to_json(config));
  Program program(argv({"--tp", "241"}), {.environment = testing::torchrun_environment(1, 241, "many")});
  EXPECT_EQ(exit_code(program.wait()), 2);
  EXPECT_EQ(program.errors(),
            "shardwise: connect: a shared-memory group must have at most 240 ranks; got 241\n");
}

TEST_F(TrainProgram, GenerateGivesTheSameTextAtEveryTp) {
  Program train(argv({"--save", scratch_ / "saved"}), kOneThread);
  expect_success(train);
  std::vector<std::string> texts;
  for (const char* tp : {"1", "2"}) {
    const std::vector<std::string> generate{SHARDWISE_PROGRAM,
                                            "generate",
                                            "--model",
                                            scratch_ / "saved",
                                            "--prompt",
                                            "line ",
                                            "--max-new-tokens",
                                            "5",
                                            "--tp",
                                            tp};
    Program plain(generate, kOneThread);
    expect_success(plain);
    texts.push_back(plain.output());
    EXPECT_TRUE(plain.output().starts_with("line ") && plain.output().ends_with('\n')) << plain.output();
    auto with_json = generate;
    with_json.push_back("--json");
    Program structured(with_json, kOneThread);
    expect_success(structured);
    const json result = json::parse(structured.output());
    EXPECT_EQ(result["prompt"], "line ");
    EXPECT_EQ(result["token_ids"].size(), 5u);
    EXPECT_EQ(plain.output(), "line " + result["text"].get<std::string>() + "\n");
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(Program, HelpAndVersionGoToStandardOutput) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"--version"}, {"train", "--help"}, {"generate", "--help"}}) {
    std::vector<std::string> argv{"shardwise"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(run_program(argv), 0);
    EXPECT_PRED2(contains, ::testing::internal::GetCapturedStdout(), "shardwise");
  }
}

}  // namespace
}  // namespace shardwise::cli::train_test
