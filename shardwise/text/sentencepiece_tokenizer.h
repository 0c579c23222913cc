// SentencePiece's tokenizer.model, through its own library.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace shardwise::text {

/// Control symbols are no text: decoding leaves them out in any case. Encoding puts bos and eos around a text
/// where tokenizer_config.json has add_bos_token or add_eos_token.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  using Tokenizer::decode;

  /// Errors: c10::ValueError for a file that the library does not read, and for tokens that added_tokens.json
  /// or tokenizer_config.json beside it add to the model.
  explicit SentencePieceTokenizer(const std::string& path);
  ~SentencePieceTokenizer() override;

  int64_t vocab_size() const override;
  SpecialIds special_ids() const override { return special_ids_; }
  std::optional<int64_t> id_of(const std::string& token) const override;
  std::unique_ptr<StreamDecoder> stream(Specials specials) const override;
  std::string decode(const std::vector<int64_t>& ids, Specials specials) const override;

 private:
  void encode_checked(std::string_view text, Specials specials, std::vector<int64_t>& ids) const override;
  void read_config(const std::string& directory);
  void check_added_tokens(const JsonPart& config, const std::string& directory) const;
  void check_added_token(const std::string& token, const std::string& id, const std::string& label) const;

  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  SpecialIds special_ids_;
  int text_piece_ = 0;
  bool adds_bos_ = false, adds_eos_ = false;
};

}  // namespace shardwise::text
