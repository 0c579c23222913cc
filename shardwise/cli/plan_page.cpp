#include "shardwise/cli/plan_page.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/plan_output.h"
#include "shardwise/version.h"

namespace shardwise::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// What the page's template has once each (tools/planner/page.html).
constexpr std::string_view kVersion = "<meta name=\"shardwise-version\" content=\"" SHARDWISE_VERSION "\">";
constexpr std::string_view kStart = "<script id=\"start\" type=\"application/json\">null</script>";

/// Errors: c10::ValueError if a flag is given of what is printed, which a page is not.
void check_flags_of_page(const std::vector<GivenFlag>& given) {
  for (const GivenFlag& flag : given) {
    const bool is_of_output =
        std::ranges::count(std::vector{"rows", "why", "json", "shapes", "largest", "matrix", "check"},
                           flag.name) > 0;
    TORCH_CHECK_VALUE(!is_of_output, "plan: --html must go without flags of what is printed; got --",
                      flag.name, " [SW0803]");
  }
}

/// Returns the page beside the program in its build directory, or in the share/ of its prefix.
std::string page_path() {
  const fs::path directory = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path built = directory / "planner.html";
  const fs::path installed = directory.parent_path() / "share/shardwise/planner.html";
  if (fs::exists(built)) return built.string();
  TORCH_CHECK_VALUE(fs::exists(installed), "plan: --html needs the planner's page; got none at ",
                    built.string(), " or ", installed.string(), "; build it with make planner [SW0804]");
  return installed.string();
}

std::string config_file_of(const std::string& model) {
  return base::is_directory(model) ? model + "/config.json" : model;
}

/// Replaces the path in `flag` by `name`, the key of its text in `files`.
void take_file(ordered_json& flag, ordered_json& files, const std::string& name, const std::string& path) {
  flag = name;
  files[name] = base::read_text(path);
}

ordered_json start_of(const PlanOptions& o, const std::vector<GivenFlag>& given) {
  ordered_json flags = ordered_json::object(), files = ordered_json::object();
  for (const auto& [name, value] : given)
    if (name != "html") flags[name] = value ? ordered_json(*value) : ordered_json(true);
  const auto is_one_of = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::count(names, name) > 0;
  };
  if (o.model && !is_one_of(config::preset_names_to_plan(), *o.model))
    take_file(flags["model"], files, "config.json", config_file_of(*o.model));
  if (!is_one_of(plan::machine_names(), o.machine))
    take_file(flags["machine"], files, "machine.json", o.machine);
  return {{"flags", flags}, {"files", files}};
}

}  // namespace

std::string page_with(const std::string& page, const PlanOptions& options,
                      const std::vector<GivenFlag>& given) {
  const size_t start = page.find(kStart);
  TORCH_CHECK_VALUE(start != std::string::npos && page.find(kVersion) != std::string::npos,
                    "plan: the page must be one of this version, ", SHARDWISE_VERSION,
                    "; got another; build it with make planner [SW0805]");
  const bool has_flags =
      std::ranges::any_of(given, [](const GivenFlag& flag) { return flag.name != "html"; });
  if (!has_flags) return page;
  const size_t null = start + kStart.find("null");
  return std::string(page).replace(null, std::string_view("null").size(),
                                   in_script(json_line(start_of(options, given))));
}

int write_page(const PlanOptions& options, const std::vector<GivenFlag>& given) {
  check_flags_of_page(given);
  base::check_new_or_regular_file("plan: --html", *options.html);
  if (given.size() > 1) plan_output(options);  // so that a page starts with plans, not with an error
  base::check_not_an_input("plan: --html", *options.html,
                           {config_file_of(options.model.value_or("")), options.machine});
  base::write_text(*options.html, page_with(base::read_text(page_path()), options, given));
  return 0;
}

}  // namespace shardwise::cli
