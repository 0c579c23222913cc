#include "tests/fuzz/target.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardwise/text/bpe_tokenizer.h"
#include "shardwise/text/chat_template.h"
#include "shardwise/text/sentencepiece_tokenizer.h"
#include "shardwise/text/token_file.h"

namespace shardwise::fuzz {
namespace {

/// Several scripts, combining marks, whitespace, a control character, half an emoji, and invalid UTF-8.
constexpr std::string_view kText = "It's  naïve\n\t 12345 — e\u0301 並列 \xf0\x9f\x91 <s>\x01 can't\r\n";

/// A tokenizer that is accepted must be usable: it encodes any text to ids of its vocabulary, and decodes
/// them and others, which a model may generate. It may reject a text that exceeds a limit, for example of its
/// pattern's time.
void use_tokenizer(const text::Tokenizer& tokenizer) {
  constexpr int64_t kOthers = 100;
  std::vector<int64_t> ids = tokenizer.encode(kText);
  for (const int64_t id : ids) hold(id >= 0 && id < tokenizer.vocab_size(), "ids are in the vocabulary");
  for (int64_t id = std::min(tokenizer.vocab_size(), kOthers); id > 0; --id) ids.push_back(id - 1);
  const auto stream = tokenizer.stream(text::SpecialTokens::with);
  std::string streamed;
  for (const int64_t id : ids) streamed += stream->push(id);
  hold(streamed + stream->finish() == tokenizer.decode(ids), "streaming gives the text of decoding all ids");
}

/// The directory has a tokenizer.model, to which this file may add only what it has.
void read_beside_model(const std::string& path) {
  use_tokenizer(*text::load_tokenizer(std::filesystem::path(path).parent_path()));
}

void read_tokens(const std::string& path) {
  const text::TokenFile file(path);
  std::vector<int64_t> ids(file.size());
  file.read(0, ids);
  for (const int64_t id : ids) hold(id >= 0 && id < file.vocab_size(), "ids are in the vocabulary");
}

void render(const std::string& path) {
  const auto chat = text::ChatTemplate::load(std::filesystem::path(path).parent_path());
  chat.render(text::OrderedJson::parse(
      R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"},
          {"role": "assistant", "content": "Hello.", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
          {"role": "user", "content": [{"type": "text", "text": "並列"}]}])"));
}

}  // namespace

std::vector<Target> text_targets() {
  return {{"tokenizer", "tokenizer.json", &Mutator::json,
           [](const std::string& path) { use_tokenizer(text::BpeTokenizer(path)); }},
          {"sentencepiece", "tokenizer.model", &Mutator::protobuf,
           [](const std::string& path) { use_tokenizer(text::SentencePieceTokenizer(path)); }},
          {"sentencepiece_config", "tokenizer_config.json", &Mutator::json, read_beside_model},
          {"added_tokens", "added_tokens.json", &Mutator::json, read_beside_model},
          {"special_tokens_map", "special_tokens_map.json", &Mutator::json, render},
          {"chat_template", "chat_template.jinja", &Mutator::raw, render},
          {"tokens", "tokens.bin", &Mutator::raw, read_tokens}};
}

}  // namespace shardwise::fuzz
