// `shardwise plan`: what it refuses, in one line each.
#include <fstream>

#include "shardwise/config/config.h"
#include "tests/cli/bad_input.h"

namespace shardwise::cli::plan_bad_input_test {
namespace {

TEST_F(BadInput, Plan) {
  const Arguments good{{"--model", "llama-3.1-8b"}, {"--ranks", "8"}};
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments = good;
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("plan", arguments, named);
  };
  expect_refused("plan", {{"--ranks", "8"}}, {"--model", "got none"});
  expect_refused("plan", {{"--model", "gpt2"}}, {"--ranks", "got 0"});
  refused({{"--model", "gpt-5"}}, {"--model", "llama-3.1-405b", "gpt-5"});
  refused({{"--model", scratch_ / "text"}}, {"text"});
  config::Quantization gptq{
      .file_format = config::Quantization::FileFormat::gptq, .bits = 4, .group_size = 128};
  const std::string quantized = scratch_ / "quantized.json";
  std::ofstream(quantized) << config::with_quantization(config::to_json(config::preset("llama-3.1-8b")),
                                                        gptq);
  refused({{"--model", quantized}}, {"--model", "unquantized", "int4 in groups of 128 (gptq)"});
  refused({{"--machine", "tpu"}}, {"machine", "h100", "tpu"});
  refused({{"--machine", scratch_ / "text"}}, {"text"});
  refused({{"--task", "serve"}}, {"--task", "infer", "serve"});
  for (const auto& [flag, value] : Arguments{{"--prompt-tokens", "8"},
                                             {"--new-tokens", "8"},
                                             {"--quantize", "int8"},
                                             {"--group-size", "32"},
                                             {"--head", "none"},
                                             {"--kv-cache-dtype", "int8"}})
    refused({{flag, value}}, {flag, "--task infer", "--task train"});
  for (const auto& [flag, value] : Arguments{{"--seq-len", "8"},
                                             {"--dp", "2"},
                                             {"--cp", "2"},
                                             {"--micro-batch-size", "1"},
                                             {"--zero", "1"},
                                             {"--recompute", "full"},
                                             {"--why", ""}})
    refused({{"--task", "infer"}, {flag, value}}, {flag, "--task train", "--task infer"});
  for (const char* flag : {"--ranks", "--batch-size", "--seq-len", "--tp", "--cp", "--pp", "--dp", "--ep",
                           "--micro-batch-size", "--rows"}) {
    refused({{flag, "0"}}, {flag, "got 0"});
    refused({{flag, "-8"}}, {flag, "got -8"});
    refused({{flag, "99999999999"}}, {flag, "99999999999"});
  }
  refused({{"--seq-len", "131073"}}, {"--seq-len", "131072", "131073"});
  refused({{"--batch-size", "16777216"}, {"--seq-len", "4096"}}, {"17179869184 tokens", "16777216 x 4096"});
  refused({{"--tp", "3"}}, {"divide", "3", "8 ranks"});
  refused({{"--tp", "4"}, {"--dp", "4"}}, {"divide", "16", "8 ranks"});
  refused({{"--check", ""}}, {"--check", "--model llama-3.1-8b"});
  expect_refused("plan", {{"--check", ""}, {"--ranks", "8"}}, {"--check", "--ranks"});
  expect_refused("plan", {{"--check", ""}, {"--min-gpus", ""}}, {"--check", "--min-gpus"});
  expect_refused("plan", {{"--check", ""}, {"--shapes", ""}}, {"--check", "--shapes"});
  expect_refused("plan", {{"--check", ""}, {"--task", "infer"}}, {"--check", "--task infer"});
  for (const auto& [flag, value] : Arguments{{"--machine", "a100"},
                                             {"--tp", "2"},
                                             {"--check", ""},
                                             {"--largest", "seq"},
                                             {"--seq-len", "8"},
                                             {"--model", "gpt2"}})
    expect_refused("plan", {{"--matrix", ""}, {flag, value}},
                   {flag == "--check" ? "--check has its own models; got --matrix" : "--matrix", flag});
  refused({{"--ep", "2"}}, {"ep", "experts of a block, 1", "got 2"});
  refused({{"--model", "mixtral-8x7b"}, {"--ep", "16"}}, {"ep", "experts of a block, 8", "got 16"});
  refused({{"--largest", "all"}}, {"--largest", "batch or seq", "all with --task train"});
  refused({{"--largest", "kv"}}, {"--largest", "kv with --task train"});
  refused({{"--largest", "seq"}, {"--task", "infer"}}, {"--largest", "seq with --task infer"});
  for (const auto& [flag, value] : Arguments{{"--batch-size", "8"},
                                             {"--seq-len", "8"},
                                             {"--pp", "1"},
                                             {"--dp", "8"},
                                             {"--cp", "1"},
                                             {"--ep", "1"},
                                             {"--micro-batch-size", "1"},
                                             {"--split-batch", ""},
                                             {"--why", ""},
                                             {"--shapes", ""}})
    refused({{"--largest", "seq"}, {flag, value}}, {flag});
  for (const char* flag : {"--pp", "--ep"})
    refused({{"--task", "infer"}, {"--largest", "kv"}, {flag, "1"}}, {"--largest", flag});
  expect_refused("plan", {{"--model", "deepseek-v3"}, {"--shapes", ""}, {"--tp", "2"}},
                 {"--model", "latent attention", "deepseek_v3"});
  refused({{"--why", ""}, {"--json", ""}}, {"--why", "--json"});
  refused({{"--zero", "4"}}, {"--zero", "got 4"});
  refused({{"--recompute", "some"}}, {"--recompute", "selective", "some"});
  refused({{"--split-batch", ""}, {"--recompute", "full"}}, {"split batches", "selective", "full"});
  refused({{"--split-batch", ""}, {"--micro-batch-size", "1"}}, {"split batches", "2 sequences", "got 1"});
  refused({{"--split-batch", ""}, {"--model", "mixtral-8x7b"}}, {"split batches", "experts", "got 8"});
  refused({{"--split-batch", ""}, {"--task", "infer"}}, {"--split-batch", "--task train"});
  refused({{"--algorithm", "butterfly"}}, {"two-shot", "butterfly"});
  refused({{"--overlap", "maybe"}}, {"--overlap", "on", "maybe"});
  refused({{"--gradient-dtype", "float8"}}, {"--gradient-dtype", "float32", "float8"});
  refused({{"--gradient-dtype", "bfloat16"}, {"--dtype", "float32"}}, {"no narrower", "bfloat16", "float32"});
  refused({{"--dtype", "fp8"}}, {"--dtype", "bfloat16", "fp8"});
  const auto refused_shapes = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--model", "gpt2"}, {"--shapes", ""}, {"--tp", "2"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("plan", arguments, named);
  };
  expect_refused("plan", {{"--model", "gpt2"}, {"--shapes", ""}}, {"--shapes needs --tp", "got none"});
  refused_shapes({{"--tp", "13"}}, {"--tp", "12", "got 13"});
  refused_shapes({{"--seq-len", "1025"}}, {"--seq-len", "1024"});
  for (const auto& [flag, value] : Arguments{{"--ranks", "8"},
                                             {"--min-gpus", ""},
                                             {"--memory-cap", "8"},
                                             {"--pp", "1"},
                                             {"--dp", "1"},
                                             {"--micro-batch-size", "1"},
                                             {"--zero", "1"},
                                             {"--recompute", "none"},
                                             {"--why", ""}})
    refused_shapes({{flag, value}}, {"--shapes", "got " + flag});
  refused({{"--min-gpus", ""}}, {"--min-gpus", "--ranks 8"});
  const auto refused_inference = [&](Arguments changes, const std::vector<std::string>& named) {
    changes["--task"] = "infer";
    refused(changes, named);
  };
  for (const char* flag : {"--prompt-tokens", "--new-tokens", "--batch-size", "--tp", "--pp", "--ep"}) {
    refused_inference({{flag, "0"}}, {flag, "got 0"});
    refused_inference({{flag, "99999999999"}}, {flag, "99999999999"});
  }
  refused_inference({{"--tp", "3"}}, {"divide", "8 ranks", "3"});
  refused_inference({{"--tp", "4"}, {"--pp", "4"}}, {"divide", "8 ranks", "tp 4 and pp 4"});
  refused_inference({{"--ep", "2"}}, {"ep", "experts of a block, 1", "got 2"});
  refused_inference({{"--model", "mixtral-8x7b"}, {"--ep", "16"}}, {"ep", "experts of a block, 8", "got 16"});
  refused_inference({{"--prompt-tokens", "131072"}}, {"--prompt-tokens", "131071"});
  refused_inference({{"--prompt-tokens", "131000"}, {"--new-tokens", "73"}}, {"--new-tokens", "72"});
  refused_inference({{"--quantize", "int2"}}, {"--quantize", "int4", "int2"});
  refused_inference({{"--quantize", "int4"}, {"--group-size", "7"}}, {"--group-size", "7"});
  refused_inference({{"--group-size", "32"}}, {"--group-size", "--quantize"});
  refused_inference({{"--head", "none"}}, {"--head", "--quantize"});
  refused_inference({{"--kv-cache-dtype", "fp8"}}, {"--kv-cache-dtype", "fp8"});
  refused_inference({{"--model", quantized}, {"--quantize", "int8"}},
                    {"--quantize", "not quantized", "gptq"});
  for (const char* gb : {"0", "-1", "1e7"})
    refused({{"--memory-cap", gb}}, {"--memory-cap", gb[0] == '1' ? "1e+07" : gb});
}

}  // namespace
}  // namespace shardwise::cli::plan_bad_input_test
