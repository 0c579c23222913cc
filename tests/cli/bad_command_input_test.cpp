// Usage errors of generate, eval, doctor and tokenize: exit code 2, one line that names the value and the
// rule, and no file written.
#include "tests/checkpoint/stored_model.h"
#include "tests/cli/bad_input.h"
#include "tests/text/sentencepiece_writer.h"

namespace shardwise::cli::bad_command_input_test {
namespace {

TEST_F(BadInput, Generate) {
  const std::string good = checkpoint();
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--model", good}, {"--prompt", "line"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("generate", arguments, named);
  };
  refused({{"--model", scratch_ / "absent"}}, {"absent"});
  refused({{"--max-new-tokens", "0"}}, {"--max-new-tokens", "got 0"});
  refused({{"--max-new-tokens", "61"}}, {"max_position_embeddings", "64", "61"});
  refused({{"--temperature", "-1"}}, {"temperature", "got -1"});
  refused({{"--tp", "7"}}, {"--tp", "6 query heads", "got 7"});
  refused({{"--top-q", "0.5"}}, {"unknown flag --top-q"});
  refused({{"--top-p", "0"}, {"--temperature", "1"}}, {"top_p", "got 0"});
  refused({{"--top-p", "0.5"}}, {"--top-p", "--temperature above 0"});
  refused({{"--num-return", "2"}}, {"--num-return", "--temperature above 0"});
  refused({{"--top-k", "-1"}, {"--temperature", "1"}}, {"top_k", "got -1"});
  refused({{"--min-p", "2"}, {"--temperature", "1"}}, {"min_p", "got 2"});
  refused({{"--repetition-penalty", "0"}}, {"repetition_penalty", "got 0"});
  refused({{"--num-return", "0"}}, {"--num-return", "got 0"});
  for (const std::string many : {"1000001", "1000000000000", "9223372036854775807"})
    refused({{"--num-return", many}, {"--temperature", "1"}},
            {"prompts x --num-return must be at most 1000000 sequences; got 1 x " + many});
  refused({{"--batch-size", "0"}}, {"--batch-size", "got 0"});
  refused({{"--chunk", "0"}}, {"--chunk", "got 0"});
  refused({{"--kv-cache-dtype", "fp8"}}, {"--kv-cache-dtype must be one of auto, int8", "got fp8"});
  refused({{"--speculate", "16"}}, {"--speculate must be from 0 to 15", "got 16"});
  refused({{"--speculate", "-1"}}, {"--speculate must be from 0 to 15", "got -1"});
  refused({{"--dtype", "fp16"}}, {"--dtype", "auto, fp32, bf16", "got fp16"});
  refused({{"--load-format", "gguf"}}, {"--load-format", "auto, dummy", "got gguf"});
  refused({{"--logprobs", ""}}, {"--logprobs", "--json"});
  refused({{"--prompt-ids", "1"}}, {"--prompt-ids", "got 2"});
  refused({{"--chat", ""}}, {"chat_template"});
  refused({{"--tokenizer", scratch_ / "absent.json"}}, {"absent.json"});
  const auto refused_ids = [&](const std::string& ids, const std::vector<std::string>& named) {
    expect_refused("generate", {{"--model", good}, {"--prompt-ids", ids}}, named);
  };
  refused_ids("1,x", {"--prompt-ids", "'x'"});
  refused_ids("1,2,", {"--prompt-ids", "''"});
  refused_ids("1,259", {"[0, 259)", "got 259"});
  base::write_text(good + "/latest/generation_config.json", R"({"max_length": 3})");
  refused_ids("1,2,3", {"must be shorter than max_length of generation_config.json, 3; got 3 tokens"});
  std::filesystem::remove(good + "/latest/generation_config.json");
  expect_refused("generate", {{"--model", good}, {"--prompt-ids", "1"}, {"--stop", "x"}},
                 {"--stop", "tokenizer"});
  expect_refused("generate", {{"--model", good}, {"--prompt-ids", "1"}, {"--chat", ""}},
                 {"--chat", "--prompt-ids"});
  const auto refused_line = [&](const std::string& line, const std::vector<std::string>& named) {
    expect_refused("generate", {{"--model", good}, {"--batch-file", scratch_.put("batch", line)}}, named);
  };
  refused_line("", {"batch", "must have a line"});
  expect_refused("generate",
                 {{"--model", good},
                  {"--batch-file", scratch_.put("batch", "{\"prompt\": \"x\"}\n{\"prompt\": \"y\"}")},
                  {"--num-return", "500001"},
                  {"--temperature", "1"}},
                 {"got 2 x 500001"});
  refused_line("{\"prompt\": \"x\"}\n{\"prompt\": \"" + std::string(16 << 20, 'x') + "\"}",
               {"line 2: JSON must have at most 16777216 bytes; got 16777230"});
  refused_line("\n{\"prompt\": 3}", {"line 2: prompt", "got 3"});
  refused_line("{}", {"line 1", "prompt_ids", "got 0"});
  refused_line("{\"prompt_ids\": [1], \"prompt\": \"x\"}", {"line 1", "got 2"});
  refused_line("{\"prompt_ids\": [1], \"max_new_tokens\": 0}",
               {"line 1: max_new_tokens", "1 or more; got 0"});
  refused_line("{\"prompt_ids\": [1], \"max_new_tokens\": 64}", {"max_position_embeddings", "64"});
  refused_line("nothing", {"line 1"});
  refused_line("{\"prompt\": \"x\", \"max_tokens\": 3}", {"line 1", "no fields but", "max_tokens"});
  refused_line("{\"prompt\": \"x\"}\n{\"prompt_ids\": [600]}", {"line 2", "[0, 259)", "got 600"});
  scratch_.put("good/step-2/generation_config.json", "{\"top_p\": 1.5, \"do_sample\": true}");
  refused({}, {"generation_config.json: top_p", "got 1.5"});
  scratch_.put("good/step-2/generation_config.json", "{\"max_new_tokens\": -3}");
  refused({}, {"generation_config.json: max_new_tokens", "got -3"});
  scratch_.put("good/step-2/generation_config.json", "{\"eos_token_id\": \"end\"}");
  refused({}, {"generation_config.json: eos_token_id", "end"});
  fs::remove(scratch_ / "good/step-2/generation_config.json");
  refused({{"--pp", "0"}}, {"--pp must be at least 1", "got 0"});
  refused({{"--pp", "4611686018427387904"}, {"--tp", "4"}},
          {"must have from 1 to", "got 9223372036854775807"});
  refused({{"--pp", "3"}}, {"--pp must be at most the number of layers", "got 3"});
  refused({{"--pp", "2"}, {"--pp-layers", "2"}}, {"--pp-layers must be as many numbers as --pp, 2", "got 1"});
  refused({{"--pp", "2"}, {"--pp-layers", "2,2"}}, {"--pp-layers must add up to", "got 4"});
  refused({{"--pp", "2"}, {"--pp-layers", "0,2"}}, {"--pp-layers", "got 0"});
  refused({{"--pp-layers", "3"}}, {"--pp-layers must add up to", "got 3"});
  expect_refused("generate", {{"--model", good}}, {"--prompt"});
  expect_refused("generate", {{"--prompt", "line"}}, {"--model"});
}

TEST_F(BadInput, Eval) {
  const std::string good = checkpoint();
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--model", good}, {"--text", scratch_ / "text"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("eval", arguments, named);
  };
  refused({{"--model", scratch_ / "absent"}}, {"absent"});
  refused({{"--text", scratch_ / "absent"}}, {"absent"});
  refused({{"--text", scratch_.put("short", "x")}}, {"--text", "two tokens"});
  refused({{"--seq-len", "65"}}, {"--seq-len", "64", "got 65"});
  refused({{"--pp", "3"}}, {"eval: --pp must be at most the number of layers", "got 3"});
  refused({{"--seq-len", "0"}}, {"--seq-len", "got 0"});
  refused({{"--batch-size", "0"}}, {"--batch-size", "got 0"});
  refused({{"--tp", "0"}}, {"--tp", "got 0"});
  refused({{"--dtype", "fp64"}}, {"--dtype", "got fp64"});
  refused({{"--kv-cache-dtype", "fp8"}}, {"--kv-cache-dtype must be one of auto, int8", "got fp8"});
  expect_refused("eval", {{"--model", good}}, {"--text"});
  expect_refused("eval", {{"--text", scratch_ / "text"}}, {"--model"});
}

TEST_F(BadInput, Doctor) {
  const std::string good = checkpoint();
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--model", good}, {"--tp", "2"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("doctor", arguments, named);
  };
  refused({{"--model", scratch_ / "absent"}}, {"absent"});
  refused({{"--tp", "1"}}, {"--tp must be at least 2", "got 1"});
  refused({{"--tp", "7"}}, {"--tp", "6 query heads", "got 7"});
  refused({{"--seq-len", "65"}}, {"--seq-len", "64", "got 65"});
  refused({{"--seq-len", "3"}}, {"--seq-len", "from 4", "got 3"});
  refused({{"--text", scratch_ / "absent"}}, {"absent"});
  refused({{"--text", scratch_.put("short", "short")}}, {"--text", "two sequences", "129", "got 5"});
  refused({{"--tokenizer", "bytes"}}, {"--tokenizer needs --text", "got bytes alone"});
  refused({{"--quantize", "int8"}}, {"must not be quantized", "got int8"});
  refused({{"--dtype", "fp64"}}, {"--dtype", "got fp64"});
  refused({{"--timeout", "0"}}, {"--timeout", "got 0"});
  expect_refused("doctor", {{"--tp", "2"}}, {"--model"});
}

TEST_F(BadInput, Tokenize) {
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--tokenizer", "bytes"}, {"--text", scratch_ / "text"}, {"--out", scratch_ / "ids"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("tokenize", arguments, named);
  };
  refused({{"--tokenizer", "words"}}, {"bytes, a directory", "got words"});
  refused({{"--tokenizer", scratch_ / "."}}, {"tokenizer.json or tokenizer.model"});
  refused({{"--tokenizer", scratch_.put("t.json", R"({"version": "1.0", "truncation": {"max_length": 3}})")}},
          {"t.json: truncation must be null", "max_length"});
  refused({{"--tokenizer", scratch_.put("t.model", "none")}}, {"t.model", "SentencePiece"});
  refused({{"--text", scratch_ / "absent"}}, {"absent"});
  refused({{"--out", scratch_ / "."}}, {"--out", "directory"});
  refused({{"--out", scratch_ / "absent/ids"}}, {"--out", "absent"});
  refused({{"--out", "/dev/null"}}, {"--out", "regular file", "/dev/null"});
  scratch_.put("in/text", "text");
  fs::create_symlink("text", scratch_ / "link");
  refused({{"--out", scratch_ / "link"}}, {"--out", "regular file", "link"});
  refused({{"--out", scratch_ / "text"}}, {"--out", "must not overwrite an input", "text"});
  refused({{"--text", scratch_ / "in"}, {"--out", scratch_ / "in/ids"}},
          {"--out", "overwrite an input", "in/ids"});
  scratch_.put("long", "");
  fs::resize_file(scratch_ / "long", size_t{1} << 30);  // sparse
  refused({{"--text", scratch_ / "long"}},
          {"long: a file must be at most 1073741823 bytes", "got 1073741824"});
  refused({{"--end-token", "<end>"}}, {"--end-token", "<end>"});
  refused({{"--lines", ""}}, {"--lines", "got 2"});
  expect_refused("tokenize", {{"--lines", ""}}, {"--tokenizer"});
  expect_refused("tokenize", {{"--tokenizer", "bytes"}}, {"--lines", "--out", "got 0"});
  expect_refused("tokenize", {{"--tokenizer", "bytes"}, {"--out", scratch_ / "ids"}}, {"--text"});
  expect_refused("tokenize", {{"--tokenizer", "bytes"}, {"--text", scratch_ / "text"}}, {"--out"});
  expect_refused("tokenize", {{"--tokenizer", "bytes"}, {"--lines", ""}, {"--json", ""}},
                 {"--json", "--out"});
}

/// Bytes that would color the text of a terminal, and one that is not UTF-8.
const std::string kForTerminal = "\x1b[31m\xff", kEscaped = R"(\x1b[31m\xff)";

TEST_F(BadInput, ReachesTheTerminalEscaped) {
  const std::string piece = test::piece_field({"<unk>", 0, text::Piece::Type::unknown}) +
                            test::piece_field({kForTerminal, 0, text::Piece::Type::normal});
  expect_refused("tokenize", {{"--tokenizer", scratch_.put("t.model", piece)}, {"--lines", ""}},
                 {"pieces[1] must be UTF-8; got \"\\u001b[31m\\ufffd\""});
  const std::string name = kForTerminal + ".model";
  expect_refused("tokenize", {{"--tokenizer", scratch_.put(name, "none")}, {"--lines", ""}},
                 {scratch_ / kEscaped + ".model: "});
  expect_refused("tokenize", {{"--tokenizer", kForTerminal}, {"--lines", ""}}, {"got " + kEscaped});
  expect_refused("train", training({{"--lr", kForTerminal}}), {"got '" + kEscaped + "'"});
}

TEST_F(BadInput, TensorNamesReachTheTerminalEscaped) {
  const std::string good = checkpoint(), file = "good/step-2/model.safetensors",
                    all = test::contents(scratch_ / file);
  const auto refused = [&](const std::vector<std::string>& named) {
    const std::string text = usage_error({"shardwise", "inspect", good});
    for (const std::string& part : named) EXPECT_PRED2(contains, text, part);
  };
  for (const std::string byte : {"\xff", "\x1b"}) {  // neither is JSON
    std::string renamed = all;
    scratch_.put(file, renamed.replace(renamed.find("model.norm.weight"), 1, byte));
    refused({"model.safetensors: header: must be JSON"});
  }
  testing::StoredTensors tensors = testing::read_safetensors(scratch_.put(file, all));
  tensors["\x1b[31mx"] = {"F32", {1}, "1234"};  // in the file as \u001b
  scratch_.put(file, testing::safetensors_of(tensors));
  refused({"model.safetensors: must contain only tensors of the model", R"("\u001b[31mx")"});
  tensors.erase("\x1b[31mx");
  tensors["\x1b[31mx.rotary_emb.inv_freq"] = {"F32", {1}, "1234"};  // of older exporters; not read
  scratch_.put(file, testing::safetensors_of(tensors));
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_program({"shardwise", "inspect", good}), 0);
  EXPECT_PRED2(contains, ::testing::internal::GetCapturedStdout(), R"(\x1b[31mx.rotary_emb.inv_freq )");
}

}  // namespace
}  // namespace shardwise::cli::bad_command_input_test
