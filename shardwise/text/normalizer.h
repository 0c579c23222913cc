// The `normalizer` of tokenizer.json: what is done to text before it is split.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/text/json_fields.h"

namespace shardwise::text {

/// Steps on UTF-8 text, in order: NFC, NFD, NFKC, NFKD, Prepend, Replace. One thread at a time.
class Normalizer {
 public:
  /// Does nothing.
  Normalizer() = default;
  /// Errors: c10::ValueError naming the field of a step that is not known.
  explicit Normalizer(const JsonPart& json) { add(json); }

  void apply_(std::string& text) const {
    for (const auto& step : steps_) step(text);
  }

 private:
  void add(const JsonPart& json);

  std::vector<std::function<void(std::string&)>> steps_;
};

/// Replaces what the `pattern` of a Replace ({"String": …} or {"Regex": …}) finds by its `content`; for
/// decoders too. Errors: c10::ValueError naming the field.
std::function<void(std::string&)> replacement_step(const JsonPart& json);

}  // namespace shardwise::text
