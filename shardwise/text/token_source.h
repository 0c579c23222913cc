// A text as token ids by position, whatever it is kept as.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/text/corpus.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

/// Reading is safe from several threads.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t size() const = 0;
  /// Ids are below it.
  virtual int64_t vocab_size() const = 0;
  /// A hash of what it was made from: ranks that have the same tokens agree on it.
  virtual uint64_t fingerprint() const = 0;
  /// Ids [begin, begin + ids.size()). Errors: c10::ValueError outside the source, or when what it was made
  /// from has changed.
  virtual void read(int64_t begin, std::span<int64_t> ids) const = 0;
};

/// A corpus whose every byte is a token; nothing is copied until it is read.
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

/// A corpus encoded file by file when this is made, and kept in memory. Cost: 4 bytes a token.
class EncodedTokens : public TokenSource {
 public:
  /// Errors: c10::ValueError for a file that the tokenizer refuses.
  EncodedTokens(const Corpus& corpus, const Tokenizer& tokenizer);
  int64_t size() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t vocab_size() const override { return vocab_size_; }
  uint64_t fingerprint() const override { return fingerprint_; }
  void read(int64_t begin, std::span<int64_t> ids) const override;

 private:
  std::vector<uint32_t> ids_;
  int64_t vocab_size_;
  uint64_t fingerprint_;
};

}  // namespace shardwise::text
