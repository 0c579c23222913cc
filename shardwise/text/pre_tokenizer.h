// The `pre_tokenizer` of tokenizer.json: splits text into words. BPE merges never cross words.
#pragma once
#include <functional>
#include <vector>

#include "shardwise/text/growth_limit.h"
#include "shardwise/text/json_fields.h"
#include "shardwise/text/metaspace.h"
#include "shardwise/text/split.h"

namespace shardwise::text {

/// A sequence of steps: ByteLevel, Split, Digits, Metaspace. Not thread-safe.
class PreTokenizer {
 public:
  /// Constructs the identity.
  PreTokenizer() = default;
  /// Throws c10::ValueError naming the field if a step is not supported.
  explicit PreTokenizer(const JsonPart& json) { add(json); }

  /// Whether the model operates on bytes, written as ByteLevel characters, instead of characters.
  bool is_byte_level() const { return is_byte_level_; }
  /// Splits and transforms `words` in place. Errors: those of `limit`.
  void apply_(PreTokenizedString& words, const GrowthLimit& limit) const {
    for (const auto& step : steps_) {
      step(words);
      limit.check(words.text.size());
    }
  }

 private:
  void add(const JsonPart& json);
  void add_byte_level(const JsonPart& json);
  void add_metaspace(const Metaspace& metaspace);

  std::vector<std::function<void(PreTokenizedString&)>> steps_;
  bool is_byte_level_ = false;
};

}  // namespace shardwise::text
