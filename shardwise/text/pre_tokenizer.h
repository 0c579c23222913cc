// The `pre_tokenizer` of tokenizer.json: where text is cut into the words that merges stay within.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/text/json_fields.h"
#include "shardwise/text/regex.h"

namespace shardwise::text {

/// Text and the words in it, in order.
struct Words {
  std::string text;
  std::vector<Span> spans;
  bool is_at_start;  // nothing of the input comes before
};

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

  std::vector<std::function<void(Words&)>> steps_;
  bool is_byte_level_ = false;
};

}  // namespace shardwise::text
