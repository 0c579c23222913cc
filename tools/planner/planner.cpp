// The planner as a WebAssembly module: one function, `shardwise plan --json` on a request.
//
// A request is a JSON object: "flags" of the command by name, true for a switch; and "files", texts by the
// names that flags give them, such as a config.json. The response is the line that the command prints, or an
// object with "error", its error.
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/plan_output.h"
#include "shardwise/plan/machine.h"

namespace {

using nlohmann::ordered_json;

std::vector<std::string> arguments_of(const ordered_json& flags) {
  std::vector<std::string> arguments;
  for (const auto& [name, value] : flags.items()) {
    if (value == false) continue;
    arguments.push_back("--" + name);
    if (value.is_string()) arguments.push_back(value.get<std::string>());
    if (value.is_array())
      for (const ordered_json& word : value) arguments.push_back(word.get<std::string>());
  }
  return arguments;
}

std::string response_of(const ordered_json& request) {
  for (const auto& [name, text] : request.at("files").items())
    std::ofstream(name) << text.get<std::string>();  // in the module's memory
  shardwise::cli::PlanOptions options;
  shardwise::cli::Flags flags("plan", "");
  shardwise::cli::add_flags(flags, options);
  TORCH_CHECK_VALUE(flags.parse(arguments_of(request.at("flags"))) && !options.html,
                    "the page shows plans; got --help or --html");
  options.json = true;
  return shardwise::cli::plan_output(options).text;
}

std::string response_or_error(const char* request) {
  try {
    return response_of(ordered_json::parse(request));
  } catch (const std::exception& error) {
    return shardwise::cli::json_line({{"error", shardwise::base::one_line(error)}});
  }
}

/// Returns a copy that the caller frees.
char* copy_of(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  TORCH_INTERNAL_ASSERT(copy);
  return std::strcpy(copy, text.c_str());
}

}  // namespace

extern "C" {

char* shardwise_plan(const char* request) {
  return copy_of(response_or_error(request));
}

/// Returns what the page offers: {"models": [...], "machines": [...]}.
char* shardwise_choices() {
  return copy_of(shardwise::cli::json_line({{"models", shardwise::config::preset_names_to_plan()},
                                            {"machines", shardwise::plan::machine_names()}}));
}
}
