// The flags of one command: each is declared once with the variable it fills, and read from the command line
// and from a JSON file.
//
// A thin layer over CLI11, which only flags.cpp includes. It adds the JSON file, uniform usage errors, and
// strict parsing of numbers. The code that uses the values checks their ranges and conflicts.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/base/setting.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardwise::cli {

/// Parses all of `text` into `value`. Errors: c10::ValueError naming the flag, the rule and the text.
void read_value(const std::string& flag, const std::string& text, int64_t& value);
void read_value(const std::string& flag, const std::string& text, uint64_t& value);
void read_value(const std::string& flag, const std::string& text, double& value);
void read_value(const std::string& flag, const std::string& text, std::string& value);
template <class T>
void read_value(const std::string& flag, const std::string& text, std::optional<T>& value) {
  read_value(flag, text, value.emplace());
}
template <class T>
void read_value(const std::string& flag, const std::string& text, base::Setting<T>& value) {
  T given{};
  read_value(flag, text, given);
  value = std::move(given);
}

/// Checks a flag that has a fixed set of values. Errors: c10::ValueError unless `value` is one of `choices`.
void check_choice(const std::string& command, const std::string& flag, const std::string& value,
                  const std::vector<std::string>& choices);

/// Checks a flag with a range of integers. Errors: c10::ValueError unless `value` is from `min` to `max`.
void check_range(const std::string& command, const std::string& flag, int64_t value, int64_t min,
                 int64_t max);

/// A flag that was given: its first name without dashes, and its value, or its values separated by spaces;
/// nullopt: it is a switch.
struct GivenFlag {
  std::string name;
  std::optional<std::string> value;
};

class Flags {
 public:
  Flags(const std::string& command, const std::string& description);
  ~Flags();

  /// Adds a positional argument such as "DIR"; the order is that of these calls. The --config file has none.
  void argument(const std::string& name, std::optional<std::string>& target, const std::string& help);
  /// Adds a positional argument that takes all words without a flag, such as "RUN...".
  void arguments(const std::string& name, std::vector<std::string>& target, const std::string& help);

  /// Lists the flags added from now on under this title in the help.
  void group(const std::string& title) { group_ = title; }

  /// Adds a flag with a value. `names` is such as "--tp,--tp-size N", where N is the placeholder in the help;
  /// errors use the first name. The variable keeps its value if the flag is not given.
  template <class T>
  void value(const std::string& names, T& target, const std::string& help) {
    add_value(names, help, [&target](const std::string& flag, const std::string& text) {
      read_value(flag, text, target);
    });
  }
  /// Adds a flag whose value may be any text, also an empty one.
  void text(const std::string& names, std::optional<std::string>& target, const std::string& help);
  /// Adds a flag with one or more values: "--text PATH".
  void values(const std::string& names, std::vector<std::string>& target, const std::string& help);
  /// Adds a switch: the flag sets it; with "--x,!--no-x" the second name clears it.
  void on_off(const std::string& names, bool& target, const std::string& help);

  /// Declares mutually exclusive flags, without dashes: one on the command line also overrides the others in
  /// the file.
  void alternatives(std::set<std::string> names) { alternatives_.push_back(std::move(names)); }

  /// Reads the command's arguments, then the --config file for flags that they do not set. Returns false if
  /// it has printed the help; the caller then returns. The last of several values of a flag counts, but a
  /// file has each once. Errors: c10::ValueError for an unknown flag or key, and for a missing or invalid
  /// value.
  bool parse(const std::vector<std::string>& arguments);
  /// Returns whether a flag was given on the command line or in the file. `name` has no dashes in front. Call
  /// it after parse.
  bool is_given(const std::string& name) const;
  /// Returns the name of a flag that was given and is none of `names`; nullopt if there is none.
  std::optional<std::string> given_except(const std::set<std::string>& names) const;

  /// Returns the flags that parse() has read, in the order in which they were added, without switches that
  /// are off. Of several values, the last.
  std::vector<GivenFlag> given() const;

 private:
  using Read = std::function<void(const std::string& flag, const std::string& text)>;
  void add_value(const std::string& names, const std::string& help, Read read);
  CLI::Option* added(CLI::Option* option);
  void parse_command_line(const std::vector<std::string>& arguments);
  void check_extras() const;
  void read_file(const std::string& path);
  CLI::Option* option_of_key(const std::string& key, const std::string& path) const;
  bool is_overridden(const CLI::Option& option, const std::set<CLI::Option*>& on_command_line) const;

  std::string command_;
  std::string group_ = "Options";
  std::string file_;
  bool has_arguments_ = false;
  std::vector<std::set<std::string>> alternatives_;
  std::unique_ptr<CLI::App> app_;
  std::vector<CLI::Option*> options_;
};

}  // namespace shardwise::cli
