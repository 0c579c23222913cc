// Ends a text where one of several strings begins, as the text comes.
#pragma once
#include <string>
#include <vector>

namespace shardwise::text {

class StopStrings {
 public:
  /// Errors: c10::ValueError for an empty string.
  explicit StopStrings(std::vector<std::string> stops);

  /// What `added` makes certain to come before any stop: the rest may still become one.
  std::string push(const std::string& added);
  /// Whether a stop was found: the text ends before it, and nothing more comes.
  bool is_found() const { return is_found_; }
  /// What is left when the text ends otherwise.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string waiting_;
  bool is_found_ = false;
};

}  // namespace shardwise::text
