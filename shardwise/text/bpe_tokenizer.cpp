#include "shardwise/text/bpe_tokenizer.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/text/added_tokens.h"
#include "shardwise/text/bpe.h"
#include "shardwise/text/model_directory.h"
#include "shardwise/text/normalizer.h"
#include "shardwise/text/post_processor.h"
#include "shardwise/text/pre_tokenizer.h"
#include "shardwise/text/special_ids.h"
#include "shardwise/text/token_decoder.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {

using nlohmann::json;

namespace {

void check_file(const JsonPart& file) {
  file.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"});
  if (file.text("version") != "1.0") throw_invalid(file.label("version"), "1.0", file.at("version"));
  // Truncation and padding of texts are not supported.
  for (const char* name : {"truncation", "padding"}) {
    if (file.has(name)) throw_invalid(file.label(name), "null", file.at(name));
  }
}

/// Constructs an optional component; default if the file does not have it.
template <class Part>
Part optional_part(const JsonPart& file, const char* name) {
  return file.has(name) ? Part(file.part(name)) : Part();
}

/// Whether one of the tokens, which are listed by id, has this id.
bool contains(const std::vector<std::optional<std::string>>& tokens, int64_t id) {
  return id >= 0 && id < std::ssize(tokens) && tokens[static_cast<size_t>(id)];
}

}  // namespace

struct BpeTokenizer::Parts {
  /// Of one text: its normalized parts, and those after pre-tokenization.
  struct Limits {
    GrowthLimit normalized, words;
  };

  explicit Parts(const JsonPart& file);
  void add_token(const AddedToken& token, const std::string& label);
  bool has(int64_t id) const { return contains(tokens, id); }
  void check_post_processor(const JsonPart& file) const;
  void encode_segment(std::string_view text, bool is_at_start, Limits& limits, std::vector<int64_t>& ids);
  void encode_words(std::string_view text, bool is_at_start, Limits& limits, std::vector<int64_t>& ids);

  std::mutex mutex;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  PostProcessor post_processor;
  TokenDecoder decoder;
  std::vector<AddedToken> added;
  AddedTokenFinder raw_token_finder, normalized_token_finder;
  size_t added_bytes = 0;                          // of all patterns
  std::vector<std::optional<std::string>> tokens;  // by id, in the decoder's input form
  std::set<std::string> specials;
  SpecialIds special_ids;

  // Buffers reused between calls.
  std::vector<TextSegment> raw_segments, normalized_segments;
  PreTokenizedString words;
};

BpeTokenizer::Parts::Parts(const JsonPart& file)
    : normalizer(optional_part<Normalizer>(file, "normalizer")),
      pre_tokenizer(optional_part<PreTokenizer>(file, "pre_tokenizer")),
      model(file.part("model"), pre_tokenizer.is_byte_level()),
      post_processor(file.has("post_processor") ? read_post_processor(file.part("post_processor"))
                                                : PostProcessor()),
      decoder(file.part("decoder")),
      added(read_added_tokens(file)) {
  for (const auto& [token, id] : model.vocabulary()) {
    if (id >= tokens.size()) tokens.resize(size_t{id} + 1);
    tokens[id] = token;
  }
  for (size_t i = 0; i < added.size(); ++i) {
    const std::string where = file.label("added_tokens[" + std::to_string(i) + "].");
    const std::string label = where + "id";
    const auto known = model.vocabulary().find(added[i].content);
    if (known != model.vocabulary().end() && known->second != added[i].id) {
      throw_invalid(label, "the id in the vocabulary", added[i].id);
    }
    if (has(added[i].id) && known == model.vocabulary().end())
      throw_invalid(label, "a unique id", added[i].id);
    add_token(added[i], where + "content");
  }
  check_post_processor(file);
}

void BpeTokenizer::Parts::check_post_processor(const JsonPart& file) const {
  for (const auto* ids : {&post_processor.before, &post_processor.after}) {
    for (const int64_t id : *ids) {
      if (!has(id))
        throw_invalid(file.label("post_processor"), "a template whose ids are in the vocabulary", id);
    }
  }
}

void BpeTokenizer::Parts::add_token(const AddedToken& token, const std::string& label) {
  std::string pattern = token.content;
  if (token.normalized) normalizer.apply_(pattern, GrowthLimit(pattern.size()));
  if (token.id >= tokens.size()) tokens.resize(size_t{token.id} + 1);
  tokens[token.id] = pattern;
  if (token.special) specials.insert(token.content);
  check_added_token(pattern.size(), added_bytes += pattern.size(), label);
  if (pattern.empty()) return;
  (token.normalized ? normalized_token_finder : raw_token_finder).add(token, pattern);
}

/// Encodes text between the added tokens that match raw text.
void BpeTokenizer::Parts::encode_segment(std::string_view text, bool is_at_start, Limits& limits,
                                         std::vector<int64_t>& ids) {
  std::string normalized(text);
  normalizer.apply_(normalized, limits.normalized);
  limits.normalized.add_output(normalized.size());
  if (normalized_token_finder.empty()) return encode_words(normalized, is_at_start, limits, ids);
  normalized_segments.clear();
  normalized_token_finder.split(normalized, normalized_segments);
  for (const auto& [span, token] : normalized_segments) {
    if (token) {
      ids.push_back(token->id);
    } else {
      const auto part = std::string_view(normalized).substr(span.begin, span.end - span.begin);
      encode_words(part, is_at_start && span.begin == 0, limits, ids);
    }
  }
}

void BpeTokenizer::Parts::encode_words(std::string_view text, bool is_at_start, Limits& limits,
                                       std::vector<int64_t>& ids) {
  if (text.empty()) return;
  words.text = text;
  words.spans.assign(1, {0, text.size()});
  words.is_at_start = is_at_start;
  pre_tokenizer.apply_(words, limits.words);
  limits.words.add_output(words.text.size());
  const std::string_view all = words.text;
  for (const Span span : words.spans) model.encode(all.substr(span.begin, span.end - span.begin), ids);
}

BpeTokenizer::BpeTokenizer(const std::string& path) {
  const json object = base::read_json(path);
  const JsonPart file{object, path + ": "};
  check_file(file);
  parts_ = std::make_unique<Parts>(file);
  SpecialIds ids;
  if (parts_->model.unk()) ids.unk = *parts_->model.unk();
  const std::string config_path = directory_of(path) + "/tokenizer_config.json";
  const json config = read_object(config_path);
  parts_->special_ids = special_ids_from_config({config, config_path + ": "}, *this, ids);
}

BpeTokenizer::~BpeTokenizer() = default;

int64_t BpeTokenizer::vocab_size() const {
  return static_cast<int64_t>(parts_->tokens.size());
}

bool BpeTokenizer::has(int64_t id) const {
  return parts_->has(id);
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

void BpeTokenizer::encode_checked(std::string_view text, SpecialTokens specials,
                                  std::vector<int64_t>& ids) const {
  const std::lock_guard lock(parts_->mutex);
  const std::string replaced = is_utf8(text) ? "" : replace_invalid(text);
  if (!replaced.empty()) text = replaced;
  const bool adds_specials = specials == SpecialTokens::with;
  if (adds_specials)
    ids.insert(ids.end(), parts_->post_processor.before.begin(), parts_->post_processor.before.end());
  Parts::Limits limits{GrowthLimit(text.size()), GrowthLimit(text.size())};
  parts_->raw_segments.clear();
  parts_->raw_token_finder.split(text, parts_->raw_segments);
  for (const auto& [span, token] : parts_->raw_segments) {
    if (token) {
      ids.push_back(token->id);
    } else {
      parts_->encode_segment(text.substr(span.begin, span.end - span.begin), span.begin == 0, limits, ids);
    }
  }
  if (adds_specials)
    ids.insert(ids.end(), parts_->post_processor.after.begin(), parts_->post_processor.after.end());
}

namespace {

class BpeStream : public StreamDecoder {
 public:
  BpeStream(const TokenDecoder& decoder, const std::vector<std::optional<std::string>>& tokens,
            const std::set<std::string>* skipped)
      : stream_(decoder), tokens_(tokens), skipped_(skipped) {}

  std::string push(int64_t id) override {
    TORCH_CHECK_VALUE(contains(tokens_, id), "tokenizer: ids must be in its vocabulary, below ",
                      tokens_.size(), "; got ", id, " [SW0165]");
    if (skipped_ && skipped_->count(*tokens_[id]) > 0) return "";
    return stream_.push(*tokens_[id]);
  }
  std::string finish() override { return stream_.finish(); }

 private:
  TokenDecoder::Stream stream_;
  const std::vector<std::optional<std::string>>& tokens_;
  const std::set<std::string>* skipped_;
};

}  // namespace

std::unique_ptr<StreamDecoder> BpeTokenizer::stream(SpecialTokens specials) const {
  const auto* skipped = specials == SpecialTokens::without ? &parts_->specials : nullptr;
  return std::make_unique<BpeStream>(parts_->decoder, parts_->tokens, skipped);
}

}  // namespace shardwise::text
