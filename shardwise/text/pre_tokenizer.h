// The `pre_tokenizer` of tokenizer.json: where text is cut into the words that merges stay within.
#pragma once
#include <functional>
#include <vector>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/metaspace.h"
#include "shardwise/text/split.h"

namespace shardwise::text {

/// Steps, in order: ByteLevel, Split, Digits, Metaspace. One thread at a time.
class PreTokenizer {
 public:
  /// Leaves text whole.
  PreTokenizer() = default;
  /// Errors: c10::ValueError naming the field of a step that is not known.
  explicit PreTokenizer(const JsonPart& json) { add(json); }

  /// Whether the model sees bytes, as ByteLevel characters, rather than characters.
  bool is_byte_level() const { return is_byte_level_; }
  void apply_(Words& words) const {
    for (const auto& step : steps_) step(words);
  }

 private:
  void add(const JsonPart& json);
  void add_byte_level(const JsonPart& json);
  void add_metaspace(const Metaspace& metaspace);

  std::vector<std::function<void(Words&)>> steps_;
  bool is_byte_level_ = false;
};

}  // namespace shardwise::text
