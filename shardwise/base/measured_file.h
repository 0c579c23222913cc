// A small text file in the user's cache directory with what a benchmark measured, for later runs on the same
// machine.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::base {

/// The file shardwise/KIND-<hash of `measured_on`> in $XDG_CACHE_HOME or $HOME/.cache. Its first line is
/// "measured_on " and `measured_on`, which describes the machine; the result follows.
class MeasuredFile {
 public:
  MeasuredFile(const std::string& kind, std::string measured_on);

  /// Returns "" if neither variable is an absolute path.
  const std::string& path() const { return path_; }
  /// Returns the result; nullopt if nothing was saved. Errors: c10::ValueError if the file cannot be read, is
  /// larger than `max_bytes` or was measured on another machine.
  std::optional<std::string> read(int64_t max_bytes) const;
  /// Saves a result, overwriting an earlier one. path() must not be "". Errors: FileError.
  void write(const std::string& result) const;

 private:
  std::string heading() const;

  std::string measured_on_, path_;
};

/// Returns the start of a file's text, for an error: quoted, or "nothing".
std::string start_of(std::string_view text);

}  // namespace shardwise::base
