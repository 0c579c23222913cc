// Tokenizers: encode text to token ids and decode token ids to text.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::text {

/// Whether encoding adds special tokens such as BOS around the text (add_special_tokens in transformers), and
/// whether decoding keeps them (not skip_special_tokens). Special tokens in the text are encoded in both
/// cases.
enum class SpecialTokens { with, without };

/// The special token ids; nullopt if the tokenizer's files do not define them.
struct SpecialIds {
  std::optional<int64_t> bos;  // begins a sequence
  std::optional<int64_t> eos;  // ends a sequence
  std::optional<int64_t> pad;  // fills a batch
  std::optional<int64_t> unk;  // stands for unknown text
};

/// Decodes a stream of token ids to text.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;
  /// Adds an id and returns the text that is now complete, which consists of complete UTF-8 characters or is
  /// empty. The concatenated results of push and finish equal Tokenizer::decode of all ids. Throws
  /// c10::ValueError if `id` is not a token.
  virtual std::string push(int64_t id) = 0;
  /// Returns the remaining text at the end of the stream.
  virtual std::string finish() = 0;
};

/// A tokenizer. Thread-safe; calls are serialized.
class Tokenizer {
 public:
  /// The longest text that `encode` accepts.
  static constexpr int64_t kMaxTextBytes = (int64_t{1} << 30) - 1;

  virtual ~Tokenizer() = default;

  /// All ids are below vocab_size().
  virtual int64_t vocab_size() const = 0;
  /// Returns whether `id` is a token: ids below vocab_size() need not all be.
  virtual bool has(int64_t id) const { return id >= 0 && id < vocab_size(); }
  /// Returns the ids of the special tokens.
  virtual SpecialIds special_ids() const = 0;
  /// Returns the id of a token, written as in the vocabulary.
  virtual std::optional<int64_t> id_of(const std::string& token) const = 0;
  /// Returns whether encode replaces invalid UTF-8: all tokenizers but `bytes` do.
  virtual bool replaces_invalid_utf8() const { return true; }
  /// Appends the ids of `text`. Replaces invalid UTF-8 as Python's decode("utf-8", "replace") does.
  /// Throws c10::ValueError if the text has more than kMaxTextBytes.
  void encode(std::string_view text, SpecialTokens specials, std::vector<int64_t>& ids) const;
  /// Returns a decoder, which must not outlive the tokenizer. `specials` affects tokenizer.json only:
  /// SentencePiece's control symbols are always skipped, and the bytes tokenizer has none.
  virtual std::unique_ptr<StreamDecoder> stream(SpecialTokens specials) const = 0;
  /// Decodes `ids`. Throws c10::ValueError if an id is not a token.
  virtual std::string decode(const std::vector<int64_t>& ids, SpecialTokens specials) const;

  /// Returns the ids of `text` with special tokens. Errors: those of the other overload.
  std::vector<int64_t> encode(std::string_view text) const;
  /// Decodes `ids` and keeps special tokens. Errors: c10::ValueError if an id is not a token.
  std::string decode(const std::vector<int64_t>& ids) const { return decode(ids, SpecialTokens::with); }

 private:
  /// Implements encode for a text of at most kMaxTextBytes.
  virtual void encode_checked(std::string_view text, SpecialTokens specials,
                              std::vector<int64_t>& ids) const = 0;
};

/// The tokenizer `bytes`: ids 0 to 255 are bytes. It has no special tokens.
class BytesTokenizer : public Tokenizer {
 public:
  /// The number of bytes.
  static constexpr int64_t kVocabSize = 256;
  using Tokenizer::decode;

  int64_t vocab_size() const override { return kVocabSize; }
  /// Returns no ids.
  SpecialIds special_ids() const override { return {}; }
  /// Returns false: every byte is a token.
  bool replaces_invalid_utf8() const override { return false; }
  std::optional<int64_t> id_of(const std::string& token) const override;
  std::unique_ptr<StreamDecoder> stream(SpecialTokens specials) const override;
  /// Returns the bytes unchanged, valid UTF-8 or not.
  std::string decode(const std::vector<int64_t>& ids, SpecialTokens specials) const override;

 private:
  void encode_checked(std::string_view text, SpecialTokens specials,
                      std::vector<int64_t>& ids) const override;
};

/// Loads the tokenizer `name`: the word bytes, a tokenizer.json or tokenizer.model, or a directory with one
/// of them (tokenizer.json is preferred). tokenizer_config.json in the same directory defines the special
/// token ids. Its add_bos_token and add_eos_token apply to a tokenizer.model only; a tokenizer.json has a
/// post_processor instead, as in transformers. Throws c10::ValueError naming the file, field and value if a
/// file is invalid or uses an unsupported feature.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name);
/// Returns the path of the tokenizer file in `directory`, if there is one.
std::optional<std::string> tokenizer_in(const std::string& directory);
/// Returns the paths of the files that load_tokenizer may read.
std::vector<std::string> tokenizer_paths(const std::string& name);

}  // namespace shardwise::text
