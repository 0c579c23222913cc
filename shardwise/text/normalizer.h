// The `normalizer` of tokenizer.json: transforms text before pre-tokenization.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "shardwise/text/growth_limit.h"
#include "shardwise/text/json_fields.h"

namespace shardwise::text {

/// Changes text in place. Errors: those of GrowthLimit.
using TextStep = std::function<void(std::string&, const GrowthLimit&)>;

/// A sequence of steps on UTF-8 text: NFC, NFD, NFKC, NFKD, Prepend, Replace. Not thread-safe.
class Normalizer {
 public:
  /// Constructs the identity.
  Normalizer() = default;
  /// Throws c10::ValueError naming the field if a step is not supported.
  explicit Normalizer(const JsonPart& json) { add(json); }

  /// Normalizes `text` in place. Errors: those of `limit`.
  void apply_(std::string& text, const GrowthLimit& limit) const {
    for (const auto& step : steps_) {
      step(text, limit);
      limit.check(text.size());
    }
  }

 private:
  void add(const JsonPart& json);

  std::vector<TextStep> steps_;
};

/// Returns a step that replaces the matches of a Replace step's `pattern` ({"String": …} or {"Regex": …})
/// by its `content`; decoders use it too. Throws c10::ValueError naming the invalid field.
TextStep replacement_step(const JsonPart& json);

}  // namespace shardwise::text
