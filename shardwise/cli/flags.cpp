#include "shardwise/cli/flags.h"

#include <c10/util/Exception.h>
#include <fmt/ranges.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "shardwise/base/error.h"
#include "shardwise/base/json.h"

namespace shardwise::cli {

using nlohmann::json;

namespace {

constexpr int kMaxValues = 1 << 24;  // of one flag; CLI11 reads twice that as "one value at a time"

/// Splits "--tp,--tp-size N" into the flag's names and the placeholder of its value.
struct FlagNames {
  std::string names, value;
  explicit FlagNames(const std::string& text)
      : names(text.substr(0, text.find(' '))), value(text.substr(text.find(' ') + 1)) {}
  std::string first() const { return names.substr(0, names.find(',')); }
};

/// Converts a value of the JSON file to its command-line text.
std::string text_of(const std::string& key, const json& value, const std::string& path) {
  TORCH_CHECK_VALUE(value.is_string() || value.is_number() || value.is_boolean(), path, ": ", key,
                    " must be a number, string, true or false; got ", base::shown(value), " [SW0006]");
  return value.is_string() ? value.get<std::string>() : value.dump();
}

json parse_object(const std::string& path) {
  const json object = base::read_json(path);
  TORCH_CHECK_VALUE(object.is_object(), path, ": a config file must be a JSON object; got ",
                    base::shown(object), " [SW0007]");
  return object;
}

/// Returns the name of the key's flag, without dashes.
std::string name_of_key(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

void add_results(CLI::Option& option, const std::string& key, const json& value, const std::string& path) {
  if (option.get_expected_max() == 0) {  // a switch; the key may be its negative name
    TORCH_CHECK_VALUE(value.is_boolean(), path, ": ", key, " must be true or false; got ", base::shown(value),
                      " [SW0008]");
    option.add_result(option.get_flag_value(name_of_key(key), value.dump()));
  } else if (value.is_array() && option.get_expected_max() > 1) {
    for (const json& element : value) option.add_result(text_of(key, element, path));
  } else {
    option.add_result(text_of(key, value, path));
  }
}

// CLI11 would read "[a,b]" as two values and "{}" as none if it converted the values to a vector itself.
CLI::callback_t all_into(std::vector<std::string>& target) {
  return [&target](const CLI::results_t& given) {
    target = given;
    return true;
  };
}

/// Removes every `mark` from `text`: CLI11 appends "{false}" to a switch's negative name.
std::string without(std::string text, const std::string& mark) {
  for (size_t at; (at = text.find(mark)) != std::string::npos;) text.erase(at, mark.size());
  return text;
}

}  // namespace

Flags::Flags(const std::string& command, const std::string& description)
    : command_(command), app_(std::make_unique<CLI::App>(description, "shardwise " + command)) {
  app_->allow_extras();  // check_extras reports them
  app_->get_formatter()->column_width(34);
  app_->footer("SHARDWISE_THREADS sets the threads per rank [usable cores / ranks of this node].");
}

Flags::~Flags() = default;

CLI::Option* Flags::added(CLI::Option* option) {
  options_.push_back(option->group(group_));
  return option;
}

void Flags::add_value(const std::string& names, const std::string& help, Read read) {
  const FlagNames parts(names);
  const auto set = [read = std::move(read), flag = command_ + ": " + parts.first()](const std::string& text) {
    read(flag, text);
  };
  added(app_->add_option_function<std::string>(parts.names, set, help))->type_name(parts.value)->take_last();
}

void Flags::argument(const std::string& name, std::optional<std::string>& target, const std::string& help) {
  const auto set = [&target, where = command_ + ": " + name](const std::string& text) {
    read_value(where, text, target);
  };
  app_->add_option_function<std::string>(name, set, help)->type_name("")->group("Arguments");
  has_arguments_ = true;
}

void Flags::arguments(const std::string& name, std::vector<std::string>& target, const std::string& help) {
  app_->add_option(name, all_into(target), help)
      ->type_name("")
      ->group("Arguments")
      ->expected(CLI::detail::expected_max_vector_size)  // one or more
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  has_arguments_ = true;
}

void Flags::text(const std::string& names, std::optional<std::string>& target, const std::string& help) {
  add_value(names, help, [&target](const std::string&, const std::string& text) { target = text; });
}

void Flags::values(const std::string& names, std::vector<std::string>& target, const std::string& help) {
  const FlagNames parts(names);
  CLI::Option* option =
      added(app_->add_option(parts.names, all_into(target), help))->type_name(parts.value + " ...");
  option->expected(/*value_min=*/1, kMaxValues)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Flags::on_off(const std::string& names, bool& target, const std::string& help) {
  added(app_->add_flag(names, target, help));
}

bool Flags::parse(const std::vector<std::string>& arguments) {
  app_->add_option("--config", file_,
                   "JSON file with these flags as keys (- or _); the command line overrides it")
      ->type_name("FILE");
  try {
    parse_command_line(arguments);
  } catch (const CLI::CallForHelp&) {
    std::fputs(without(app_->help(), "{false}").c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    TORCH_CHECK_VALUE(false, command_, ": ", base::shortened(error.what(), base::kMaxReasonBytes),
                      " [SW0010]");
  }
  return true;
}

std::vector<GivenFlag> Flags::given() const {
  std::vector<GivenFlag> given;
  for (const CLI::Option* option : options_) {
    if (option->count() == 0) continue;
    const bool is_switch = option->get_expected_max() == 0;
    if (is_switch && !option->as<bool>()) continue;  // false in the file
    const bool is_list = option->get_expected_max() > 1;
    given.push_back({option->get_lnames().front(),
                     is_switch ? std::nullopt
                     : is_list ? std::optional(fmt::format("{}", fmt::join(option->results(), " ")))
                               : std::optional(option->results().back())});
  }
  return given;
}

void Flags::parse_command_line(const std::vector<std::string>& arguments) {
  app_->parse(
      std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 expects them last to first
  check_extras();
  if (!file_.empty()) read_file(file_);
}

bool Flags::is_given(const std::string& name) const {
  return std::ranges::any_of(
      options_, [&](const CLI::Option* option) { return option->check_lname(name) && option->count() > 0; });
}

std::optional<std::string> Flags::given_except(const std::set<std::string>& names) const {
  for (const CLI::Option* option : options_)
    if (option->count() > 0 && !names.contains(option->get_single_name())) return option->get_single_name();
  return std::nullopt;
}

void Flags::check_extras() const {
  for (const std::string& extra : app_->remaining()) {
    TORCH_CHECK_VALUE(!extra.starts_with("-"), command_, ": unknown flag ", base::shortened(extra),
                      "; see shardwise ", command_, " --help [SW0011]");
    TORCH_CHECK_VALUE(false, command_, ": accepts no ", has_arguments_ ? "further" : "positional",
                      " argument; got ", base::shortened(extra), "; see shardwise ", command_,
                      " --help [SW0012]");
  }
}

CLI::Option* Flags::option_of_key(const std::string& key, const std::string& path) const {
  for (CLI::Option* option : options_) {
    if (option->check_lname(name_of_key(key))) return option;
  }
  TORCH_CHECK_VALUE(false, path, ": every key must be a flag of shardwise ", command_, "; got ",
                    base::shown(key), " [SW0013]");
}

bool Flags::is_overridden(const CLI::Option& option, const std::set<CLI::Option*>& on_command_line) const {
  for (const CLI::Option* given : on_command_line) {
    if (given == &option) return true;
    for (const auto& names : alternatives_) {
      const auto is_one = [&](const CLI::Option& o) { return names.contains(o.get_single_name()); };
      if (is_one(*given) && is_one(option)) return true;
    }
  }
  return false;
}

void Flags::read_file(const std::string& path) {
  std::set<CLI::Option*> on_command_line, in_file;
  for (CLI::Option* option : options_) {
    if (option->count() > 0) on_command_line.insert(option);
  }
  const json object = parse_object(path);
  for (const auto& [key, value] : object.items()) {
    CLI::Option* option = option_of_key(key, path);
    TORCH_CHECK_VALUE(in_file.insert(option).second, path, ": a flag must be given once in a file; got ",
                      base::shown(key), " again [SW0015]");
    if (!is_overridden(*option, on_command_line)) add_results(*option, key, value, path);
  }
  for (CLI::Option* option : in_file) {
    if (!is_overridden(*option, on_command_line)) option->run_callback();
  }
}

}  // namespace shardwise::cli
