// A BPE tokenizer from Hugging Face's tokenizer.json: added tokens, normalizer, pre-tokenizer, model,
// post-processor and decoder.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "shardwise/text/tokenizer.h"

namespace shardwise::text {

/// A BPE tokenizer that is read from tokenizer.json.
class BpeTokenizer : public Tokenizer {
 public:
  /// Throws c10::ValueError naming the file, field and value if the file uses an unsupported feature.
  explicit BpeTokenizer(const std::string& path);
  ~BpeTokenizer() override;

  int64_t vocab_size() const override;
  bool has(int64_t id) const override;
  SpecialIds special_ids() const override;
  std::optional<int64_t> id_of(const std::string& token) const override;
  std::unique_ptr<StreamDecoder> stream(SpecialTokens specials) const override;

 private:
  void encode_checked(std::string_view text, SpecialTokens specials,
                      std::vector<int64_t>& ids) const override;

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace shardwise::text
