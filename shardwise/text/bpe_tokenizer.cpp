#include "shardwise/text/bpe_tokenizer.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <set>

#include "shardwise/base/files.h"
#include "shardwise/text/added_tokens.h"
#include "shardwise/text/bpe.h"
#include "shardwise/text/model_directory.h"
#include "shardwise/text/normalizer.h"
#include "shardwise/text/pre_tokenizer.h"
#include "shardwise/text/special_ids.h"
#include "shardwise/text/template.h"
#include "shardwise/text/token_decoder.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {

using nlohmann::json;

namespace {

void check_file(const JsonPart& file) {
  file.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"});
  if (file.text("version") != "1.0") refuse(file.label("version"), "1.0", file.at("version"));
  // What would cut or fill every text.
  for (const char* name : {"truncation", "padding"}) {
    if (file.has(name)) refuse(file.label(name), "null", file.at(name));
  }
}

/// A part that may be left out.
template <class Part>
Part optional_part(const JsonPart& file, const char* name) {
  return file.has(name) ? Part(file.part(name)) : Part();
}

}  // namespace

struct BpeTokenizer::Parts {
  explicit Parts(const JsonPart& file);
  void add_token(const AddedToken& token);
  void check_template(const JsonPart& file) const;
  void encode_between(std::string_view text, bool is_at_start, std::vector<int64_t>& ids);
  void encode_words(std::string_view text, bool is_at_start, std::vector<int64_t>& ids);

  std::mutex mutex;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  Template around;
  TokenDecoder decoder;
  std::vector<AddedToken> added;
  AddedTokenFinder raw_finder, normalized_finder;
  std::vector<std::optional<std::string>> tokens;  // by id, as the decoder reads them
  std::set<std::string> specials;
  SpecialIds special_ids;

  // Room that is used again.
  std::vector<Stretch> outer, inner;
  Words words;
};

BpeTokenizer::Parts::Parts(const JsonPart& file)
    : normalizer(optional_part<Normalizer>(file, "normalizer")),
      pre_tokenizer(optional_part<PreTokenizer>(file, "pre_tokenizer")),
      model(file.part("model"), pre_tokenizer.is_byte_level()),
      around(file.has("post_processor") ? read_template(file.part("post_processor")) : Template()),
      decoder(file.part("decoder")),
      added(read_added_tokens(file)) {
  for (const auto& [token, id] : model.vocabulary()) {
    if (id >= tokens.size()) tokens.resize(size_t{id} + 1);
    tokens[id] = token;
  }
  for (size_t i = 0; i < added.size(); ++i) {
    const std::string label = file.label("added_tokens[" + std::to_string(i) + "].id");
    const auto known = model.vocabulary().find(added[i].content);
    if (known != model.vocabulary().end() && known->second != added[i].id) {
      refuse(label, "that of the vocabulary", added[i].id);
    }
    const bool is_taken = added[i].id < tokens.size() && tokens[added[i].id];
    if (is_taken && known == model.vocabulary().end()) refuse(label, "an id of its own", added[i].id);
    add_token(added[i]);
  }
  check_template(file);
}

void BpeTokenizer::Parts::check_template(const JsonPart& file) const {
  for (const auto* ids : {&around.before, &around.after}) {
    for (const int64_t id : *ids) {
      const bool is_token = id < static_cast<int64_t>(tokens.size()) && tokens[id];
      if (!is_token) refuse(file.label("post_processor"), "a template of ids that are tokens", id);
    }
  }
}

void BpeTokenizer::Parts::add_token(const AddedToken& token) {
  std::string pattern = token.content;
  if (token.is_normalized) normalizer.apply_(pattern);
  if (token.id >= tokens.size()) tokens.resize(size_t{token.id} + 1);
  tokens[token.id] = pattern;
  if (token.is_special) specials.insert(token.content);
  if (!pattern.empty()) (token.is_normalized ? normalized_finder : raw_finder).add(token, pattern);
}

/// Text without tokens that are found as they stand.
void BpeTokenizer::Parts::encode_between(std::string_view text, bool is_at_start, std::vector<int64_t>& ids) {
  std::string normalized(text);
  normalizer.apply_(normalized);
  if (normalized_finder.empty()) return encode_words(normalized, is_at_start, ids);
  inner.clear();
  normalized_finder.cut(normalized, inner);
  for (const auto& [span, token] : inner) {
    if (token) {
      ids.push_back(token->id);
    } else {
      const auto part = std::string_view(normalized).substr(span.begin, span.end - span.begin);
      encode_words(part, is_at_start && span.begin == 0, ids);
    }
  }
}

void BpeTokenizer::Parts::encode_words(std::string_view text, bool is_at_start, std::vector<int64_t>& ids) {
  if (text.empty()) return;
  words.text = text;
  words.spans.assign(1, {0, text.size()});
  words.is_at_start = is_at_start;
  pre_tokenizer.apply_(words);
  const std::string_view all = words.text;
  for (const Span span : words.spans) model.encode(all.substr(span.begin, span.end - span.begin), ids);
}

BpeTokenizer::BpeTokenizer(const std::string& path) {
  const json object = base::parse_json(base::read_text(path), path);
  const JsonPart file{object, path + ": "};
  check_file(file);
  parts_ = std::make_unique<Parts>(file);
  SpecialIds ids;
  if (parts_->model.unk()) ids.unk = *parts_->model.unk();
  const std::string config_path = directory_of(path) + "/tokenizer_config.json";
  const json config = read_object(config_path);
  parts_->special_ids = named_special_ids({config, config_path + ": "}, *this, ids);
}

BpeTokenizer::~BpeTokenizer() = default;

int64_t BpeTokenizer::vocab_size() const {
  return static_cast<int64_t>(parts_->tokens.size());
}

SpecialIds BpeTokenizer::special_ids() const {
  return parts_->special_ids;
}

std::optional<int64_t> BpeTokenizer::id_of(const std::string& token) const {
  for (const AddedToken& added : parts_->added) {
    if (added.content == token) return added.id;
  }
  const auto& vocabulary = parts_->model.vocabulary();
  const auto found = vocabulary.find(token);
  if (found == vocabulary.end()) return std::nullopt;
  return found->second;
}

void BpeTokenizer::encode_checked(std::string_view text, Specials specials, std::vector<int64_t>& ids) const {
  const std::lock_guard lock(parts_->mutex);
  const std::string replaced = is_utf8(text) ? "" : replace_invalid(text);
  if (!replaced.empty()) text = replaced;
  const bool is_whole = specials == Specials::kWith;
  if (is_whole) ids.insert(ids.end(), parts_->around.before.begin(), parts_->around.before.end());
  parts_->outer.clear();
  parts_->raw_finder.cut(text, parts_->outer);
  for (const auto& [span, token] : parts_->outer) {
    if (token) {
      ids.push_back(token->id);
    } else {
      parts_->encode_between(text.substr(span.begin, span.end - span.begin), span.begin == 0, ids);
    }
  }
  if (is_whole) ids.insert(ids.end(), parts_->around.after.begin(), parts_->around.after.end());
}

namespace {

class BpeStream : public StreamDecoder {
 public:
  BpeStream(const TokenDecoder& decoder, const std::vector<std::optional<std::string>>& tokens,
            const std::set<std::string>* left_out)
      : stream_(decoder), tokens_(tokens), left_out_(left_out) {}

  std::string push(int64_t id) override {
    const bool is_token = id >= 0 && id < static_cast<int64_t>(tokens_.size()) && tokens_[id];
    TORCH_CHECK_VALUE(is_token, "tokenizer: ids must be those of its tokens, below ", tokens_.size(),
                      "; got ", id);
    if (left_out_ && left_out_->count(*tokens_[id]) > 0) return "";
    return stream_.push(*tokens_[id]);
  }
  std::string finish() override { return stream_.finish(); }

 private:
  TokenDecoder::Stream stream_;
  const std::vector<std::optional<std::string>>& tokens_;
  const std::set<std::string>* left_out_;
};

}  // namespace

std::unique_ptr<StreamDecoder> BpeTokenizer::stream(Specials specials) const {
  const auto* left_out = specials == Specials::kWithout ? &parts_->specials : nullptr;
  return std::make_unique<BpeStream>(parts_->decoder, parts_->tokens, left_out);
}

}  // namespace shardwise::text
