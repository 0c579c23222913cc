// `shardwise plan --html`: the page with the flags in it, where it is found, and usage errors.
#include "shardwise/cli/plan_page.h"

#include <fmt/format.h>

#include "shardwise/version.h"
#include "tests/cli/bad_input.h"
#include "tests/launch/program.h"
#include "tests/support/temporary.h"

namespace shardwise::cli::plan_page_test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

/// What tools/planner/page.html has of a page of this version, around its start.
const std::string kHead = "<meta name=\"shardwise-version\" content=\"" SHARDWISE_VERSION "\"><p>null</p>";
const std::string kBefore = "<script id=\"start\" type=\"application/json\">",
                  kAfter = "</script><p>null</p>";

std::string template_page(const std::string& start = "null") {
  return kHead + kBefore + start + kAfter;
}

/// Returns what the flags make of the template.
std::string page_of(const Words& arguments) {
  PlanOptions options;
  Flags flags("plan", "");
  add_flags(flags, options);
  EXPECT_TRUE(flags.parse(arguments));
  return page_with(template_page(), options, flags.given());
}

json start_of(const std::string& page) {
  EXPECT_EQ(page.find(kHead + kBefore), 0u) << page;
  const size_t begin = (kHead + kBefore).size();
  EXPECT_EQ(page.substr(page.size() - kAfter.size()), kAfter);
  return json::parse(page.substr(begin, page.size() - kAfter.size() - begin));
}

TEST(PlanPage, WithoutFlagsItIsAsItWasBuilt) {
  EXPECT_EQ(page_of({"--html", "page.html"}), template_page());
}

TEST(PlanPage, StartsWithTheFlags) {
  const json start = start_of(page_of({"--html=page.html", "--model", "gpt2", "--tp=2", "--min-gpus",
                                       "--memory-cap", "7.5", "--freeze", "*wte*", "*.h.0.*"}));
  EXPECT_EQ(start["flags"], (json{{"model", "gpt2"},
                                  {"tp", "2"},
                                  {"min-gpus", true},
                                  {"memory-cap", "7.5"},
                                  {"freeze", "*wte* *.h.0.*"}}));
  EXPECT_EQ(start["files"], json::object());
}

TEST(PlanPage, ContainsTheFilesThatTheFlagsName) {
  const test::TemporaryDirectory directory;
  const std::string config = R"({"model_type": "<!-- </script>"})", machine = R"({"name": "é"})";
  directory.put("model/config.json", config);
  const std::string file = directory.put("cluster", machine);
  const std::string page = page_of({"--model", directory / "model", "--machine", file, "--ranks", "2"});
  const json start = start_of(page);
  EXPECT_EQ(start["flags"], (json{{"model", "config.json"}, {"machine", "machine.json"}, {"ranks", "2"}}));
  EXPECT_EQ(start["files"], (json{{"config.json", config}, {"machine.json", machine}}));
  // What would end the script, or begin a comment, is escaped.
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  EXPECT_EQ(page.find("</script>"), page.size() - kAfter.size());
}

TEST(PlanPage, OtherVersionsAreRefused) {
  for (const std::string& page :
       {std::string("<html>"), kBefore + "null" + kAfter, kHead, template_page("{}")})
    EXPECT_THROW(page_with(page, {}, {}), c10::ValueError) << page;
}

/// An installation of the program.
class Installed {
 public:
  Installed() {
    fs::create_directory(directory_ / "bin");
    fs::copy_file(SHARDWISE_PROGRAM, program());
  }
  std::string operator/(const std::string& name) const { return directory_ / name; }
  std::string program() const { return directory_ / "bin/shardwise"; }
  void put(const std::string& name, const std::string& text) const { directory_.put(name, text); }
  void remove(const std::string& name) const { fs::remove(directory_ / name); }

  /// Runs `shardwise plan --html page.html` and returns its exit code and errors.
  std::string plan(const Words& more = {}) const {
    Words argv = {program(), "plan", "--html", directory_ / "page.html"};
    argv.insert(argv.end(), more.begin(), more.end());
    testing::Program run(argv);
    const int code = testing::exit_code(run.wait(testing::kStartLimit));
    EXPECT_EQ(run.output(), "");
    return fmt::format("{} {}", code, run.errors());
  }
  /// Returns what it wrote; "" if it wrote nothing.
  std::string page() const {
    return fs::exists(directory_ / "page.html") ? base::read_text(directory_ / "page.html") : "";
  }

 private:
  test::TemporaryDirectory directory_;
};

TEST(PlanPage, IsThatBesideTheProgramOrInShare) {
  const Installed installed;
  installed.put("share/shardwise/planner.html", template_page());
  EXPECT_EQ(installed.plan(), "0 ");
  EXPECT_EQ(installed.page(), template_page());
  EXPECT_EQ(installed.plan({"--model", "tiny", "--ranks", "2"}), "0 ");
  EXPECT_EQ(start_of(installed.page())["flags"], (json{{"model", "tiny"}, {"ranks", "2"}}));
  installed.put("bin/planner.html", template_page() + "<!-- built -->");
  EXPECT_EQ(installed.plan(), "0 ");
  EXPECT_EQ(installed.page(), template_page() + "<!-- built -->");
}

TEST(PlanPage, WithoutOneOfThisVersionNothingIsWritten) {
  const Installed installed;
  const std::string none = installed.plan();
  EXPECT_EQ(none.find("2 shardwise: plan: --html needs the planner's page; got none at "), 0u) << none;
  EXPECT_NE(none.find("bin/planner.html or "), std::string::npos) << none;
  EXPECT_NE(none.find("make planner"), std::string::npos) << none;
  installed.put("share/shardwise/planner.html", "<meta name=\"shardwise-version\" content=\"0.1.0\">");
  const std::string other = installed.plan();
  EXPECT_EQ(other.find("2 shardwise: plan: the page must be one of this version, " SHARDWISE_VERSION), 0u)
      << other;
  EXPECT_EQ(installed.page(), "");
}

TEST_F(BadInput, PlanPage) {
  const auto refused = [&](const Arguments& changes, const std::vector<std::string>& named) {
    Arguments arguments{{"--html", scratch_ / "page.html"}, {"--model", "tiny"}, {"--ranks", "2"}};
    for (const auto& [flag, value] : changes) arguments[flag] = value;
    expect_refused("plan", arguments, named);
  };
  refused({{"--json", ""}}, {"--html", "got --json"});
  refused({{"--rows", "3"}}, {"--html", "got --rows"});
  refused({{"--why", ""}}, {"--html", "got --why"});
  refused({{"--check", ""}}, {"--html", "got --check"});
  refused({{"--shapes", ""}, {"--tp", "1"}}, {"--html", "got --shapes"});
  refused({{"--html", scratch_.path()}}, {"--html", scratch_.path()});
  refused({{"--html", scratch_ / "text"}, {"--model", scratch_ / "text"}}, {"text"});
  // The flags are those of plans that can be computed.
  refused({{"--tp", "3"}}, {"divide", "3", "2 ranks"});
  refused({{"--model", "gpt-5"}}, {"--model", "gpt-5"});
  expect_refused("plan", {{"--html", scratch_ / "page.html"}, {"--ranks", "2"}}, {"--model", "got none"});
  const std::string config = scratch_ / "config.json";
  std::ofstream(config) << config::to_json(config::preset("tiny"));
  refused({{"--html", config}, {"--model", config}}, {"--html", "must not overwrite an input"});
}

}  // namespace
}  // namespace shardwise::cli::plan_page_test
