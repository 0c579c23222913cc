// The flags of one command: declared once with the variable they fill, read from the command line and from a
// JSON file.
//
// A thin layer over CLI11, which only this room's flags.cpp sees: it adds the file, one wording for every
// mistake, and numbers that are read whole or not at all. Ranges and conflicts are judged by whoever uses the
// values.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardwise::cli {

/// `text` as a value; errors: c10::ValueError naming flag, rule and text.
void read_value(const std::string& flag, const std::string& text, int64_t& value);
void read_value(const std::string& flag, const std::string& text, uint64_t& value);
void read_value(const std::string& flag, const std::string& text, double& value);
void read_value(const std::string& flag, const std::string& text, std::string& value);
template <class T>
void read_value(const std::string& flag, const std::string& text, std::optional<T>& value) {
  read_value(flag, text, value.emplace());
}

class Flags {
 public:
  Flags(const std::string& command, const std::string& description);
  ~Flags();

  /// What stands without a flag, in the order of these calls: "DIR". Not in the file of --config.
  void argument(const std::string& name, std::optional<std::string>& target, const std::string& help);

  /// Flags that follow stand under this title in the help.
  void group(const std::string& title) { group_ = title; }

  /// `names` as "--tp,--tp-size N", N standing for the value in the help; errors name the first. The
  /// variable keeps its value when the flag is not given.
  template <class T>
  void value(const std::string& names, T& target, const std::string& help) {
    add_value(names, help, [&target](const std::string& flag, const std::string& text) {
      read_value(flag, text, target);
    });
  }
  /// One or more values: "--text PATH".
  void values(const std::string& names, std::vector<std::string>& target, const std::string& help);
  /// On when given; "--x,!--no-x" is off by its second name.
  void on_off(const std::string& names, bool& target, const std::string& help);

  /// Flags that exclude each other, without dashes: one on the command line overrides the others in the file
  /// too.
  void alternatives(std::set<std::string> names) { alternatives_.push_back(std::move(names)); }

  /// Reads the command's arguments, then the file that --config names for what they leave out.
  /// Returns false when the help was asked for: it is printed and nothing else should happen.
  /// Errors: c10::ValueError for an unknown flag or key, a missing value, one that is given twice or is none.
  bool parse(const std::vector<std::string>& arguments);

 private:
  using Read = std::function<void(const std::string& flag, const std::string& text)>;
  void add_value(const std::string& names, const std::string& help, Read read);
  CLI::Option* added(CLI::Option* option);
  void parse_command_line(const std::vector<std::string>& arguments);
  void check_extras() const;
  void read_file(const std::string& path);
  CLI::Option* option_of_key(const std::string& key, const std::string& path) const;
  bool is_overridden(const CLI::Option& option, const std::set<CLI::Option*>& on_command_line) const;
  [[noreturn]] void throw_repeated(const std::string& otherwise) const;

  std::string command_;
  std::string group_ = "Options";
  std::string file_;
  bool has_arguments_ = false;
  std::vector<std::set<std::string>> alternatives_;
  std::unique_ptr<CLI::App> app_;
  std::vector<CLI::Option*> options_;
};

}  // namespace shardwise::cli
