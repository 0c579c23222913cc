// `shardwise quantize`, generation and evaluation with its output and with --quantize, and usage errors.
#include "shardwise/quant/product.h"
#include "tests/cli/trained_model.h"

namespace shardwise::cli::quantize_test {
namespace {

/// Returns a config with sizes that the packed format supports.
config::Config packable_config() {
  config::Config config = testing::small_byte_config();
  config.hidden_size = 40;
  config.intermediate_size = 104;
  config.head_dim = 8;
  return config;
}

class QuantizeCommand : public TrainedModel {
 protected:
  QuantizeCommand() : TrainedModel(packable_config()) {}

  /// Runs the program and returns its JSON document.
  static json document(const Words& argv) { return json::parse(run(argv).output); }

  static json generated(const std::string& directory, int tp, const Words& more = {}) {
    Words argv{"generate",         "--model", directory, "--prompt", "line 4",
               "--max-new-tokens", "20",      "--json",  "--tp",     std::to_string(tp)};
    argv.insert(argv.end(), more.begin(), more.end());
    return document(argv);
  }

  const std::string packed_ = scratch_ / "packed";
};

TEST_F(QuantizeCommand, ItsDirectoryGeneratesLikeQuantizingWhileLoading) {
  const Outcome result = call({"quantize", model_, packed_, "--bits", "4", "--group-size", "32", "--json"});
  ASSERT_EQ(result.code, 0) << result.errors;
  const json summary = json::parse(result.output);
  EXPECT_EQ(summary["bits"], 4);
  EXPECT_EQ(summary["group_size"], 32);
  for (const int tp : {1, 2, 4}) {
    const json read = generated(packed_, tp);
    const json made = generated(model_, tp, {"--quantize", "int4", "--group-size", "32", "--head", "none"});
    EXPECT_EQ(read["text"], made["text"]);
    EXPECT_EQ(read["load"]["weight_bytes"], made["load"]["weight_bytes"]);
    EXPECT_EQ(read["quantization"], "int4 in groups of 32 (gptq)");
    EXPECT_EQ(made["quantization"], "int4 in groups of 32 (converted)");
  }
  // Its matrices of 16 and 32 rows are padded to 64 rows (panels_test has the bytes of each format).
  EXPECT_LT(generated(packed_, 1)["load"]["weight_bytes"][0].get<int64_t>(),
            generated(model_, 1)["load"]["weight_bytes"][0].get<int64_t>());
}

TEST_F(QuantizeCommand, NllIsEqualAtEveryTpAndNearTheOriginal) {
  scratch_.put("eval_text", testing::sample_text(400));
  const auto nll = [&](const Words& more, int tp) {
    Words argv{"eval",      "--model", model_,   "--text", scratch_ / "eval_text",
               "--seq-len", "40",      "--json", "--tp",   std::to_string(tp)};
    argv.insert(argv.end(), more.begin(), more.end());
    return document(argv)["nll"].get<double>();
  };
  const double dense = nll({}, 1), int8 = nll({"--quantize", "int8"}, 1),
               int4 = nll({"--quantize", "int4"}, 1);
  EXPECT_NE(int8, dense);
  EXPECT_NEAR(int8, dense, 2e-3);
  EXPECT_NEAR(int4, dense, 5e-2);
  for (const int tp : {2, 3}) {
    EXPECT_NEAR(nll({"--quantize", "int8"}, tp), int8, 1e-5);
    EXPECT_NEAR(nll({"--quantize", "int4"}, tp), int4, 1e-5);
  }
}

TEST_F(QuantizeCommand, Int8ActivationsChangeTheNllALittle) {
  scratch_.put("eval_text", testing::sample_text(400));
  const auto argv = [&](const std::string& format, const std::string& activations, int tp) {
    return Words{"eval",       "--model", model_,          "--text",   scratch_ / "eval_text",
                 "--seq-len",  "40",      "--json",        "--tp",     std::to_string(tp),
                 "--quantize", format,    "--activations", activations};
  };
  if (!quant::can_round_activations()) {
    return expect_refused(argv("int4", "int8", 1),
                          {"eval: --activations int8 needs a processor with AVX-512 VNNI; got "});
  }
  for (const std::string format : {"int8", "int4"}) {
    const double precise = document(argv(format, "precise", 1))["nll"];
    for (const int tp : {1, 2}) {
      const json found = document(argv(format, "int8", tp));
      EXPECT_NE(found["nll"], precise);
      EXPECT_NEAR(found["nll"].get<double>(), precise, 1e-2);
      EXPECT_PRED2(contains, found["quantization"].get<std::string>(), ", int8 activations (converted)");
    }
  }
}

TEST_F(QuantizeCommand, InspectPrintsTheQuantization) {
  ASSERT_EQ(call({"quantize", model_, packed_, "--bits", "8"}).code, 0);
  const Outcome text = call({"inspect", packed_, "--tp", "2"});
  EXPECT_PRED2(contains, text.output, "; int8 with a scale for each row (gptq)");
  EXPECT_PRED2(contains, text.output, "model.layers.0.mlp.down_proj.qweight");
  EXPECT_EQ(json::parse(call({"inspect", model_, "--json"}).output)["quantization"], nullptr);
}

TEST_F(QuantizeCommand, CopiesTheOtherFiles) {
  scratch_.put("model/step-2/generation_config.json", "{\"temperature\": 0}");
  const std::string file = model_ + "/step-2/config.json";
  json config = json::parse(test::contents(file));
  config["of_others"] = {1, 2};
  scratch_.put("model/step-2/config.json", config.dump());
  ASSERT_EQ(call({"quantize", model_, packed_}).code, 0);
  EXPECT_TRUE(fs::exists(packed_ + "/generation_config.json"));
  json written = json::parse(test::contents(packed_ + "/config.json"));
  EXPECT_EQ(written["quantization_config"]["group_size"], 128);
  written.erase("quantization_config");
  EXPECT_EQ(written, config);
}

TEST_F(QuantizeCommand, ValidationErrors) {
  expect_refused({"quantize"}, {"quantize: IN and OUT must name the directories", "got none"});
  expect_refused({"quantize", model_}, {"got one"});
  expect_refused({"quantize", model_, packed_, "--bits", "3"}, {"quantize: --bits must be 8 or 4; got 3"});
  expect_refused({"quantize", model_, packed_, "--group-size", "16"},
                 {"--group-size must be 32, 64 or 128", "16"});
  expect_refused({"quantize", model_, model_}, {"must not exist yet", model_});
  expect_refused({"quantize", model_, packed_, "--head", "int4"},
                 {"quantize: vocab_size must be a multiple of 8", "259"});
  expect_refused({"quantize", model_, packed_, "--head", "int8"},
                 {"quantize: vocab_size must be a multiple of 4", "259"});
  expect_refused({"quantize", model_, packed_, "--head", "int2"}, {"--head must be one of int8, int4, none"});
  expect_refused({"quantize", model_, packed_, "--head", "int4", "--bits", "8"},
                 {"quantize: --head int4 needs layers in int4; got layers in int8"});
  expect_refused({"quantize", scratch_ / "absent", packed_}, {"absent"});
  const auto refused = [&](Words more, const Words& named) {
    Words argv{"generate", "--model", model_, "--prompt", "x"};
    argv.insert(argv.end(), more.begin(), more.end());
    expect_refused(argv, named);
  };
  refused({"--quantize", "int3"}, {"generate: --quantize must be one of int8, int4; got int3"});
  refused({"--group-size", "32"}, {"generate: --group-size needs --quantize; got 32 without"});
  refused({"--head", "int8"}, {"generate: --head needs --quantize; got int8 without"});
  refused({"--quantize", "int8", "--head", "int4"}, {"generate: --head int4 needs layers in int4"});
  refused({"--activations", "int4"}, {"generate: --activations must be one of precise, int8; got int4"});
  refused({"--activations", "int8"}, {"generate: --activations int8 needs quantized weights; got none"});
  refused({"--quantize", "int4", "--group-size", "48"},
          {"generate: --group-size must be 32, 64 or 128; got 48"});
}

TEST_F(QuantizeCommand, TheHeadIsInt8UnlessOtherwiseAsked) {
  const auto made = [&](const Words& more) {
    Words flags{"--quantize", "int4", "--group-size", "32"};
    flags.insert(flags.end(), more.begin(), more.end());
    const json found = generated(model_, 1, flags);
    return std::pair(found["quantization"], found["load"]["weight_bytes"][0].get<int64_t>());
  };
  const auto [text, bytes] = made({});
  EXPECT_EQ(text, "int4 in groups of 32, head and embedding int8 (converted)");
  EXPECT_EQ(made({"--head", "int8"}).second, bytes);
  EXPECT_LT(made({"--head", "int4"}).second, bytes);
  EXPECT_GT(made({"--head", "none"}).second, bytes);
  EXPECT_EQ(made({"--head", "none"}).first, "int4 in groups of 32 (converted)");
}

TEST_F(QuantizeCommand, RandomWeightsAreQuantizedEquallyAtEveryTp) {
  const json one = generated(model_, 1, {"--load-format", "dummy", "--quantize", "int4"});
  for (const int tp : {2, 4})
    EXPECT_EQ(generated(model_, tp, {"--load-format", "dummy", "--quantize", "int4"})["text"],
              one.at("text"));
}

TEST_F(QuantizeCommand, QuantizedWeightsAreNeitherTrainedNorQuantizedAgain) {
  ASSERT_EQ(call({"quantize", model_, packed_}).code, 0);
  expect_refused({"quantize", packed_, scratch_ / "again"},
                 {"quantize: the input weights must not be quantized; got int4 in groups of 128 (gptq)"});
  expect_refused({"generate", "--model", packed_, "--prompt", "x", "--quantize", "int8"},
                 {"generate: --quantize needs unquantized weights; got int4 in groups of 128 (gptq)"});
  expect_refused({"generate", "--model", packed_, "--prompt", "x", "--load-format", "dummy"},
                 {"generate: --load-format dummy needs a model of unquantized weights; got int4 in groups"});
  expect_refused({"train", "--text", scratch_ / "text", "--init", packed_, "--steps", "1"},
                 {"train: quantized weights cannot be trained; got int4", "train the unquantized model"});
}

}  // namespace
}  // namespace shardwise::cli::quantize_test
