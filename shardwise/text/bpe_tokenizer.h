// A byte-pair tokenizer from Hugging Face's tokenizer.json, whole: added tokens, normalizer, pre-tokenizer,
// model, post-processor and decoder.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

class BpeTokenizer : public Tokenizer {
 public:
  /// Errors: c10::ValueError naming file, field and value for whatever the file asks for and is not known.
  explicit BpeTokenizer(const std::string& path);
  ~BpeTokenizer() override;

  int64_t vocab_size() const override;
  SpecialIds special_ids() const override;
  std::optional<int64_t> id_of(const std::string& token) const override;
  std::unique_ptr<StreamDecoder> stream(Specials specials) const override;

 private:
  void encode_checked(std::string_view text, Specials specials, std::vector<int64_t>& ids) const override;

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace shardwise::text
