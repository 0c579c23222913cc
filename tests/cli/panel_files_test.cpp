// `shardwise shard --packed`: use of the panel files that it writes, usage errors and signals.
#include <signal.h>
#include <unistd.h>

#include "shardwise/base/clock.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/cli/trained_model.h"

namespace shardwise::cli::panel_files_test {
namespace {

class PanelCommand : public TrainedModel {
 protected:
  static json document(Words argv) {
    argv.emplace_back("--json");
    return json::parse(run(argv).output);
  }
  static json generated(const std::string& directory, int tp, const Words& more = {}) {
    Words argv{"generate",         "--model", directory, "--prompt",        "line 4",
               "--max-new-tokens", "20",      "--tp",    std::to_string(tp)};
    argv.insert(argv.end(), more.begin(), more.end());
    return document(argv);
  }
  json pack(int tp, const Words& more) const {
    Words argv{"shard", model_, out_, "--packed", "--tp", std::to_string(tp)};
    argv.insert(argv.end(), more.begin(), more.end());
    return document(argv);
  }

  const std::string out_ = scratch_ / "panels";
};

TEST_F(PanelCommand, GenerateAndEvalAreThoseOfALoadWithTheSameFlags) {
  scratch_.put("eval_text", testing::sample_text(400));
  const auto nll = [&](const std::string& model, int tp, const Words& more) {
    Words argv{"eval",      "--model", model,  "--text",          scratch_ / "eval_text",
               "--seq-len", "40",      "--tp", std::to_string(tp)};
    argv.insert(argv.end(), more.begin(), more.end());
    return document(argv)["nll"].get<double>();
  };
  const Words int8{"--quantize", "int8"}, int4{"--quantize", "int4", "--head", "none"},
      bf16{"--quantize", "int4", "--group-size", "32", "--dtype", "bf16"};
  const std::vector<std::pair<Words, int>> runs{{int8, 1}, {int8, 2}, {bf16, 2}, {int4, 3}};
  for (const auto& [format, tp] : runs) {
    SCOPED_TRACE(format[1] + " on " + std::to_string(tp));
    const json summary = pack(tp, format);
    EXPECT_EQ(summary["files"].size(), static_cast<size_t>(tp));
    const json mapped = generated(out_, tp), loaded = generated(model_, tp, format);
    for (const char* field : {"text", "dtype", "quantization"}) EXPECT_EQ(mapped[field], loaded[field]);
    EXPECT_EQ(mapped["load"]["weight_bytes"], loaded["load"]["weight_bytes"]);
    for (int rank = 0; rank < tp; ++rank) {
      EXPECT_EQ(loaded["load"]["mapped_bytes"][rank], 0);
      EXPECT_GT(mapped["load"]["mapped_bytes"][rank], 0);
      EXPECT_EQ(loaded["expected_memory"][rank]["private_bytes"].get<int64_t>() -
                    mapped["expected_memory"][rank]["private_bytes"].get<int64_t>(),
                mapped["load"]["mapped_bytes"][rank].get<int64_t>());
      EXPECT_LE(mapped["memory"]["peak_bytes"][rank].get<int64_t>(),
                mapped["memory"]["expected_peak_bytes"][rank].get<int64_t>());
    }
    EXPECT_EQ(nll(out_, tp, {}), nll(model_, tp, format));
    const json of_stages = generated(out_, tp, {"--pp", "2"});
    EXPECT_EQ(of_stages["text"], loaded["text"]);
    Words with_stages = format;
    with_stages.insert(with_stages.end(), {"--pp", "2"});
    EXPECT_EQ(generated(model_, tp, with_stages)["text"], loaded["text"]);
    for (int rank = 0; rank < 2 * tp; ++rank)
      EXPECT_LT(of_stages["load"]["mapped_bytes"][rank], mapped["load"]["mapped_bytes"][rank % tp]);
    fs::remove_all(out_);
  }
}

TEST_F(PanelCommand, LogsWhatIsMapped) {
  pack(2, {"--quantize", "int8"});
  const Outcome result = run({"generate", "--model", out_, "--prompt", "line", "--tp", "2"});
  EXPECT_PRED2(contains, result.errors, "generate: mapped 0.0");
  EXPECT_PRED2(contains, result.errors, " s from " + out_);
}

TEST_F(PanelCommand, InspectListsThem) {
  pack(2, {"--quantize", "int4", "--group-size", "32"});
  const json found = document({"inspect", out_, "--tp", "2"});
  EXPECT_EQ(found["tp"], 2);
  EXPECT_EQ(found["dtype"], "fp32");
  EXPECT_EQ(found["quantize"], "int4");
  EXPECT_EQ(found["group_size"], 32);
  EXPECT_EQ(found["head"], nullptr);
  EXPECT_EQ(found["parameters"], document({"inspect", model_})["parameters"]);
  std::vector<int64_t> sums(2);
  std::map<std::string, json> by_name;
  for (const json& tensor : found["tensors"]) {
    by_name[tensor["name"]] = tensor;
    for (size_t rank = 0; rank < 2; ++rank) sums[rank] += tensor["rank_bytes"][rank].get<int64_t>();
  }
  EXPECT_EQ(found["rank_bytes"], json(sums));
  int64_t of_files = 0;
  for (const char* file : {"/panels-0-of-2.safetensors", "/panels-1-of-2.safetensors"})
    of_files += static_cast<int64_t>(fs::file_size(out_ + file));
  EXPECT_EQ(found["bytes"].get<int64_t>() + found["bytes_read"].get<int64_t>(), of_files);
  EXPECT_EQ(by_name.at("model.layers.0.mlp.down_proj.weight")["packed"], true);
  EXPECT_EQ(by_name.at("model.norm.weight")["packed"], false);
  EXPECT_EQ(by_name.at("model.norm.weight")["dtype"], "F32");
  const std::string text = run({"inspect", out_}).output;
  EXPECT_PRED2(contains, text, "packed for 2 ranks, fp32, int4 in groups of 32; per rank ");
  expect_refused({"inspect", out_, "--tp", "3"},
                 {"inspect: --tp must be that of the panel files", "2; got 3"});
  scratch_.put("panels/shardwise.panels.json",
               R"({"format": "shardwise.panels", "version": 1, "tp": 1000000000000000000, "dtype": "fp32"})");
  expect_refused({"inspect", out_}, {"panels-0-of-1000000000000000000.safetensors"});
}

TEST_F(PanelCommand, ValidationErrors) {
  const Words shard{"shard", model_, out_, "--tp", "2"};
  const auto refused = [&](Words argv, const Words& more, const Words& named) {
    argv.insert(argv.end(), more.begin(), more.end());
    expect_refused(argv, named);
  };
  for (const Words& flag : std::vector<Words>{
           {"--dtype", "bf16"}, {"--quantize", "int8"}, {"--group-size", "32"}, {"--head", "int8"}})
    refused(shard, flag, {"shard: --dtype, --quantize, --group-size and --head need --packed"});
  refused(shard, {"--packed"}, {"shard: --packed needs weights that are packed", "got fp32"});
  refused(shard, {"--packed", "--quantize", "int3"},
          {"shard: --quantize must be one of int8, int4; got int3"});
  refused({"shard", model_, model_, "--tp", "2"}, {"--packed", "--quantize", "int8"},
          {"must not exist yet", model_});
  refused({"shard", model_, out_, "--tp", "7"}, {"--packed", "--quantize", "int8"}, {"got 7"});
  EXPECT_FALSE(fs::exists(out_));
  pack(2, {"--quantize", "int8"});
  const Words generate{"generate", "--model", out_, "--prompt", "line"};
  refused(generate, {}, {"--tp must be that of the panel files in " + out_ + ", 2; got 1"});
  refused(generate, {"--tp", "2", "--dtype", "bf16"}, {"--dtype must be that of", "fp32; got bf16"});
  refused(generate, {"--tp", "2", "--quantize", "int8"},
          {"--quantize, --group-size and --head are those of"});
  refused({"doctor", "--model", out_, "--tp", "2"}, {}, {"doctor: --model must have weights that can be"});
  const std::string again = scratch_ / "again";
  refused({"shard", out_, again, "--tp", "2"}, {"--packed"}, {"shard: IN must not be packed already"});
  for (const Words& argv : std::vector<Words>{
           {"shard", out_, again, "--tp", "2"}, {"merge", out_, again}, training({"train", "--init", out_})})
    refused(argv, {}, {"packed for generate and eval; give the directory from which it was made"});
}

TEST_F(PanelCommand, ASignalLeavesNoFiles) {
  auto config = testing::small_byte_config();
  config.vocab_size = 3'000'000;
  const std::string large = scratch_ / "large";
  testing::put_zeros(large, config);
  const auto before = names();
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const std::string tp : {"1", "2"}) {
      Program program({SHARDWISE_PROGRAM, "shard", large, out_, "--packed", "--quantize", "int8", "--tp", tp},
                      kOneThread);
      const base::Stopwatch watch;
      while (names() == before && watch.seconds() < 60) usleep(1000);
      program.send(signal);
      EXPECT_EQ(testing::exit_code(program.wait(60)), 128 + signal) << program.errors();
      EXPECT_PRED2(contains, program.errors(), "shardwise: ended by signal " + std::to_string(signal));
      EXPECT_EQ(names(), before) << program.errors();
    }
  }
}

}  // namespace
}  // namespace shardwise::cli::panel_files_test
