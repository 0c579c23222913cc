// Sources of token ids, addressed by position.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/text/corpus.h"
#include "shardwise/text/invalid_utf8.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

/// A sequence of token ids. Reading is thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t size() const = 0;
  /// All ids are below vocab_size().
  virtual int64_t vocab_size() const = 0;
  /// A hash of the source's inputs. Ranks compare it to check that they have the same tokens.
  virtual uint64_t fingerprint() const = 0;
  /// Reads ids [begin, begin + ids.size()). Throws c10::ValueError if the range is out of bounds or the
  /// underlying file changed.
  virtual void read(int64_t begin, std::span<int64_t> ids) const = 0;
};

/// The bytes of a corpus as token ids. Bytes are copied only when read.
class ByteTokens : public TokenSource {
 public:
  /// `corpus` must outlive this.
  explicit ByteTokens(const Corpus& corpus) : corpus_(corpus) {}
  int64_t size() const override { return corpus_.size(); }
  int64_t vocab_size() const override { return BytesTokenizer::kVocabSize; }
  uint64_t fingerprint() const override { return corpus_.fingerprint(); }
  void read(int64_t begin, std::span<int64_t> ids) const override;

 private:
  const Corpus& corpus_;
};

/// The token ids of a corpus, encoded file by file at construction and stored in memory. Cost: 4 bytes per
/// token.
class EncodedTokens : public TokenSource {
 public:
  /// Throws c10::ValueError if a file is too long for the tokenizer.
  EncodedTokens(const Corpus& corpus, const Tokenizer& tokenizer);
  int64_t size() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t vocab_size() const override { return vocab_size_; }
  uint64_t fingerprint() const override { return fingerprint_; }
  void read(int64_t begin, std::span<int64_t> ids) const override;
  /// Returns what the tokenizer replaced in the corpus.
  const InvalidUtf8& invalid_utf8() const { return invalid_utf8_; }

 private:
  InvalidUtf8 invalid_utf8_;
  std::vector<uint32_t> ids_;
  int64_t vocab_size_;
  uint64_t fingerprint_;
};

}  // namespace shardwise::text
