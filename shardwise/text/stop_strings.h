// Stop strings: truncate a streamed text before the first stop string.
#pragma once
#include <string>
#include <vector>

namespace shardwise::text {

/// A filter for one streamed text.
class StopStrings {
 public:
  /// Throws c10::ValueError if a stop string is empty.
  explicit StopStrings(std::vector<std::string> stops);

  /// Adds text and returns the text that is certain to precede any stop string. Holds back a suffix that may
  /// become one.
  std::string push(const std::string& added);
  /// Whether a stop string was found; the text ends before it.
  bool is_found() const { return is_found_; }
  /// Returns the held-back text when the input ends without a stop string.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool is_found_ = false;
};

}  // namespace shardwise::text
