#include "shardwise/text/tokenizer.h"

#include <c10/util/Exception.h>

#include "shardwise/base/files.h"
#include "shardwise/text/bpe_tokenizer.h"
#include "shardwise/text/model_directory.h"
#include "shardwise/text/sentencepiece_tokenizer.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

char byte_of(int64_t id) {
  TORCH_CHECK_VALUE(id >= 0 && id < BytesTokenizer::kVocabSize,
                    "tokenizer bytes: ids must be from 0 to 255; got ", id, " [SW0155]");
  return static_cast<char>(id);
}

class BytesStream : public StreamDecoder {
 public:
  std::string push(int64_t id) override {
    const char byte = byte_of(id);
    return stream_.push({&byte, 1});
  }
  std::string finish() override { return stream_.finish(); }

 private:
  Utf8Stream stream_;
};

}  // namespace

std::vector<int64_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  encode(text, SpecialTokens::with, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, SpecialTokens specials, std::vector<int64_t>& ids) const {
  TORCH_CHECK_VALUE(static_cast<int64_t>(text.size()) <= kMaxTextBytes, "tokenizer: a text must be at most ",
                    kMaxTextBytes, " bytes; got ", text.size(), "; split it [SW0164]");
  encode_checked(text, specials, ids);
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, SpecialTokens specials) const {
  const auto decoder = stream(specials);
  std::string text;
  for (const int64_t id : ids) text += decoder->push(id);
  return text + decoder->finish();
}

std::optional<int64_t> BytesTokenizer::id_of(const std::string& token) const {
  if (token.size() != 1) return std::nullopt;
  return static_cast<uint8_t>(token[0]);
}

void BytesTokenizer::encode_checked(std::string_view text, SpecialTokens, std::vector<int64_t>& ids) const {
  ids.reserve(ids.size() + text.size());
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
}

std::unique_ptr<StreamDecoder> BytesTokenizer::stream(SpecialTokens) const {
  return std::make_unique<BytesStream>();
}

std::string BytesTokenizer::decode(const std::vector<int64_t>& ids, SpecialTokens) const {
  std::string text;
  text.reserve(ids.size());
  for (const int64_t id : ids) text += byte_of(id);
  return text;
}

std::optional<std::string> tokenizer_in(const std::string& directory) {
  for (const char* file : {"/tokenizer.json", "/tokenizer.model"}) {
    if (base::exists(directory + file)) return directory + file;
  }
  return std::nullopt;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<BytesTokenizer>();
  const std::optional<std::string> file_found = base::is_directory(name) ? tokenizer_in(name) : name;
  TORCH_CHECK_VALUE(file_found, "tokenizer ", name,
                    ": must contain tokenizer.json or tokenizer.model; got neither [SW0158]");
  const std::string& file = *file_found;
  if (file.ends_with(".json")) return std::make_unique<BpeTokenizer>(file);
  if (file.ends_with(".model")) return std::make_unique<SentencePieceTokenizer>(file);
  TORCH_CHECK_VALUE(false, "tokenizer: must be bytes, a directory, a .json or a .model file; got ", name,
                    " [SW0157]");
}

std::vector<std::string> tokenizer_paths(const std::string& name) {
  if (name == "bytes") return {};
  const bool is_directory = base::is_directory(name);
  const std::string directory = is_directory ? name : directory_of(name);
  std::vector<std::string> paths{directory + "/tokenizer_config.json", directory + "/added_tokens.json"};
  if (!is_directory) {
    paths.push_back(name);
  } else {
    for (const char* file : {"/tokenizer.json", "/tokenizer.model"}) paths.push_back(name + file);
  }
  return paths;
}

}  // namespace shardwise::text
