// A tokenizer.model of SentencePiece.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

/// A SentencePiece tokenizer, with unigram or BPE. Encoding adds BOS and EOS if tokenizer_config.json sets
/// add_bos_token or add_eos_token. Decoding always skips control symbols.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  /// Throws c10::ValueError if the file is damaged or needs an unsupported feature (sentencepiece_model.h),
  /// or if added_tokens.json or tokenizer_config.json in its directory add tokens to the model.
  explicit SentencePieceTokenizer(const std::string& path);
  ~SentencePieceTokenizer() override;

  int64_t vocab_size() const override;
  SpecialIds special_ids() const override { return special_ids_; }
  std::optional<int64_t> id_of(const std::string& token) const override;
  std::unique_ptr<StreamDecoder> stream(SpecialTokens specials) const override;

 private:
  void encode_checked(std::string_view text, SpecialTokens specials,
                      std::vector<int64_t>& ids) const override;
  void read_config(const std::string& directory);
  void check_added_tokens(const JsonPart& config, const std::string& directory) const;
  void check_added_token(const std::string& token, const std::string& id, const std::string& label) const;

  struct Parts;
  std::unique_ptr<Parts> parts_;
  SpecialIds special_ids_;
  bool adds_bos_ = false, adds_eos_ = false;
};

}  // namespace shardwise::text
