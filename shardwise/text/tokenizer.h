// Text to token ids and back.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::text {

/// Whether a tokenizer's special tokens take part: when encoding, those that it puts around every text
/// (found in the text, they are tokens either way); when decoding, all of them.
enum class Specials { kWith, kWithout };

/// Ids by what they are for; none where the tokenizer's files do not say.
struct SpecialIds {
  std::optional<int64_t> bos, eos, pad, unk;
};

/// Ids to text as they come.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;
  /// What `id` makes certain: whole UTF-8 characters, or nothing yet. All that push and finish return is
  /// what decode gives for all ids at once. Errors: c10::ValueError for an id that is no token.
  virtual std::string push(int64_t id) = 0;
  /// What is left when no more ids come.
  virtual std::string finish() = 0;
};

/// Safe from several threads, which take turns.
class Tokenizer {
 public:
  static constexpr int64_t kMostTextBytes = (int64_t{1} << 30) - 1;

  virtual ~Tokenizer() = default;

  /// Ids are below it.
  virtual int64_t vocab_size() const = 0;
  virtual SpecialIds special_ids() const = 0;
  /// The id of a token as the vocabulary spells it.
  virtual std::optional<int64_t> id_of(const std::string& token) const = 0;
  /// Appends the ids of `text`; bytes that are no UTF-8 are read as Python's decode("utf-8", "replace") does.
  /// Errors: c10::ValueError for a text of more than kMostTextBytes.
  void encode(std::string_view text, Specials specials, std::vector<int64_t>& ids) const;
  /// Must not outlive the tokenizer. `specials` tells of tokenizer.json alone: SentencePiece's control
  /// symbols are left out in any case, and bytes have none.
  virtual std::unique_ptr<StreamDecoder> stream(Specials specials) const = 0;
  /// Errors: c10::ValueError for an id that is no token.
  virtual std::string decode(const std::vector<int64_t>& ids, Specials specials) const;

  std::vector<int64_t> encode(std::string_view text) const;
  std::string decode(const std::vector<int64_t>& ids) const { return decode(ids, Specials::kWith); }

 private:
  /// encode, of a text that is not too long.
  virtual void encode_checked(std::string_view text, Specials specials, std::vector<int64_t>& ids) const = 0;
};

/// Tokenizer `bytes`: a token is a byte, ids 0 to 255, no specials.
class BytesTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 256;
  using Tokenizer::decode;

  int64_t vocab_size() const override { return kVocabSize; }
  SpecialIds special_ids() const override { return {}; }
  std::optional<int64_t> id_of(const std::string& token) const override;
  std::unique_ptr<StreamDecoder> stream(Specials specials) const override;
  /// The bytes as they are, UTF-8 or not.
  std::string decode(const std::vector<int64_t>& ids, Specials specials) const override;

 private:
  void encode_checked(std::string_view text, Specials specials, std::vector<int64_t>& ids) const override;
};

/// `name` is the word bytes, a tokenizer.json or tokenizer.model, or a directory that holds one (the former
/// goes first). tokenizer_config.json beside the file names the special ids; beside a tokenizer.json, whose
/// post_processor tells what stands around a text, its add_bos_token and add_eos_token count for nothing, as
/// in transformers. Errors: c10::ValueError in one line naming file, field and value, also for what a file
/// asks for that is not computed here.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name);
/// The file of the tokenizer that `directory` holds, if any.
std::optional<std::string> tokenizer_in(const std::string& directory);
/// The files that load_tokenizer reads, where they are there.
std::vector<std::string> tokenizer_paths(const std::string& name);

}  // namespace shardwise::text
