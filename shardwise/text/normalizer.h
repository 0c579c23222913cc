// The `normalizer` of tokenizer.json: transforms text before pre-tokenization.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/text/json_fields.h"

namespace shardwise::text {

/// A sequence of steps on UTF-8 text: NFC, NFD, NFKC, NFKD, Prepend, Replace. Not thread-safe.
class Normalizer {
 public:
  /// Constructs the identity.
  Normalizer() = default;
  /// Throws c10::ValueError naming the field if a step is not supported.
  explicit Normalizer(const JsonPart& json) { add(json); }

  /// Normalizes `text` in place.
  void apply_(std::string& text) const {
    for (const auto& step : steps_) step(text);
  }

 private:
  void add(const JsonPart& json);

  std::vector<std::function<void(std::string&)>> steps_;
};

/// Returns a function that replaces the matches of a Replace step's `pattern` ({"String": …} or {"Regex": …})
/// by its `content`; decoders use it too. Throws c10::ValueError naming the invalid field.
std::function<void(std::string&)> replacement_step(const JsonPart& json);

}  // namespace shardwise::text
