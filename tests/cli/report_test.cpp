// `shardwise report`: what it computes of runs and traces, as text and as the data of its page, and usage
// errors.
#include <regex>
#include <sstream>

#include "shardwise/cli/braille.h"
#include "tests/cli/bad_input.h"
#include "tests/cli/call.h"
#include "tests/support/without_rights.h"

namespace shardwise::cli::report_test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

json step(int number, double loss, const json& step_ms, const json& comm_ms, const json& wait_ms) {
  return {{"step", number}, {"loss", loss}, {"step_ms", step_ms}, {"comm_ms", comm_ms}, {"wait_ms", wait_ms}};
}

json memory(int64_t activations) {
  return {{"weights", 1000000},
          {"main gradients", 2000000},
          {"optimizer", 3000000},
          {"activations", activations},
          {"shared memory", 5000000}};
}

/// Four steps of two ranks. The first two steps do not count.
json run_of_two_ranks() {
  const json rank{{"comm_bytes", 1234567},
                  {"expected_comm_bytes", 1234000},
                  {"copied_bytes", 2000000},
                  {"memory", memory(4000000)},
                  {"expected_memory", memory(4500000)}};
  const auto weight = [](const std::string& name, const json& shard) {
    return json{{"name", name}, {"shape", {4, 6}}, {"rank_shapes", {shard, shard}}};
  };
  json steps{step(1, 4, {100, 200}, {5, 5}, {1, 1}), step(2, 3, {100, 100}, {5, 5}, {1, 1}),
             step(3, 2, {10, 20}, {2, 4}, {1, 2}), step(4, 1, {30, 20}, {4, 6}, {1, 2})};
  steps[1]["val_loss"] = 2.75;
  return {{"run",
           {{"description", "train: a <small> model"},
            {"parameters", 1250000},
            {"tp", 2},
            {"sequence_parallel", true},
            {"tokens_per_step", 50},
            {"planned_step_seconds", 0.02},
            {"planned_compute_seconds", 0.016},
            {"planned_communication_seconds", 0.004},
            {"measured_step_seconds", 0.025}}},
          {"steps", steps},
          {"ranks", {rank, rank}},
          {"parameters",
           {weight("embed", {4, 6}), weight("layers.0.up", {2, 6}), weight("layers.0.down", {4, 3}),
            weight("layers.1.up", {2, 6}), weight("layers.12.up", {4, 6})}}};
}

/// Two steps of one rank over MPI, where nothing is planned or counted: the second has other losses.
json run_of_one_rank() {
  return {{"run",
           {{"description", "train: one"},
            {"parameters", 1250000},
            {"tp", 1},
            {"sequence_parallel", false},
            {"tokens_per_step", 50},
            {"planned_step_seconds", nullptr},
            {"measured_step_seconds", nullptr}}},
          {"steps",
           {{{"step", 2}, {"loss", 3}, {"step_ms", {50}}, {"comm_ms", {0}}},
            {{"step", 3}, {"loss", 2.5}, {"step_ms", {30}}, {"comm_ms", {0}}},
            {{"step", 7}, {"loss", 9}, {"step_ms", {10}}, {"comm_ms", {0}}}}},
          {"ranks",
           {{{"comm_bytes", 0},
             {"expected_comm_bytes", 0},
             {"memory",
              {{"weights", 1000000}, {"main gradients", 0}, {"optimizer", 0}, {"activations", 500000}}}}}},
          {"parameters", {{{"name", "w"}, {"shape", {1}}, {"rank_shapes", {{1}}}}}}};
}

json op(int rank, const std::string& name, double start, double duration, double waiting = 0) {
  return {{"name", name},    {"cat", "layer 0"},
          {"ph", "X"},       {"pid", rank},
          {"tid", 0},        {"ts", start},
          {"dur", duration}, {"args", {{"part", ""}, {"waiting_us", waiting}}}};
}

/// Two steps of two ranks, the second with ops of rank 0 that nest.
json trace_of_two_ranks() {
  const json named{{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"args", {{"name", "rank 0"}}}};
  return {
      {"displayTimeUnit", "ms"},
      {"traceEvents",
       {named, op(0, "step", 1000, 500), op(0, "product", 1000, 400), op(0, "step", 2000, 30000),
        op(0, "product", 3000, 10000), op(0, "all_reduce", 14000, 8000, 3000), op(0, "outer", 22000, 6000),
        op(0, "product", 23000, 2000), op(1, "step", 1500, 500), op(1, "step", 2500, 1000)}}};
}

/// Returns the rows of tables: cells are two spaces or more apart.
std::vector<Words> rows_of(const std::string& text) {
  const std::regex gap("  +");
  std::vector<Words> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    rows.emplace_back(std::sregex_token_iterator(line.begin(), line.end(), gap, -1),
                      std::sregex_token_iterator());
  return rows;
}

json data_in(const std::string& page) {
  const std::string begin = "<script id=\"data\" type=\"application/json\">";
  const size_t at = page.find(begin) + begin.size();
  return json::parse(page.substr(at, page.find("</script>", at) - at));
}

class Report : public BadInput {
 protected:
  std::string put(const std::string& name, const json& file) const { return scratch_.put(name, file.dump()); }

  /// Returns what the command prints.
  std::string text_of(const Words& arguments) const {
    Words argv{"report"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const Outcome outcome = call(argv);
    EXPECT_EQ(outcome.code, 0) << outcome.errors;
    EXPECT_EQ(outcome.errors, "");
    return outcome.output;
  }

  /// Returns the data of the page that the command writes.
  json page_of(Words arguments) const {
    const std::string page = scratch_ / "page.html";
    arguments.insert(arguments.end(), {"-o", page});
    EXPECT_EQ(text_of(arguments), "");
    return data_in(test::contents(page));
  }

  void expect_row(const std::vector<Words>& rows, const Words& row) const {
    EXPECT_EQ(std::ranges::count(rows, row), 1)
        << ::testing::PrintToString(row) << " in " << ::testing::PrintToString(rows);
  }

  const std::string two_ = put("two.json", run_of_two_ranks()), one_ = put("one.json", run_of_one_rank()),
                    trace_ = put("trace.json", trace_of_two_ranks());
};

TEST_F(Report, PrintsTables) {
  const std::string text = text_of({two_, one_});
  const std::vector<Words> rows = rows_of(text);
  expect_row(rows, {"two.json: train: a <small> model"});
  expect_row(rows, {"run", "ranks", "parameters", "steps", "loss", "validation", "median step ms", "planned",
                    "tokens/s"});
  expect_row(rows, {"two.json", "2 with sp", "1.25M", "1 to 4", "1.0000", "2.7500", "25.00",
                    "20.00 (-20.0 %)", "2000"});
  expect_row(rows, {"one.json", "1", "1.25M", "2 to 7", "9.0000", "-", "-", "-", "5000"});
  expect_row(rows, {"mean step, ms", "rank", "step", "computing", "communicating", "waiting"});
  expect_row(rows, {"two.json", "0", "20.00", "17.00", "2.00", "1.00"});
  expect_row(rows, {"two.json", "1", "20.00", "15.00", "3.00", "2.00"});
  expect_row(rows, {"two.json", "planned", "20.00", "16.00", "4.00", "-"});
  expect_row(rows, {"one.json", "0", "10.00", "10.00", "0.00", "-"});
  expect_row(rows, {"two.json", "1", "15.00", "15.50", "1.235", "1.234", "2.000"});
  expect_row(rows, {"one.json", "0", "1.50", "-", "0.000", "0.000", "-"});
  EXPECT_PRED2(contains, text, "loss of two.json, nats per token\n");
  EXPECT_PRED2(
      contains, text,
      "losses of one.json and two.json: largest difference of 2 steps in common 5.0e-01; 1 are equal\n");
}

TEST_F(Report, AShortRunCountsAllItsSteps) {
  json run = run_of_two_ranks();
  run["steps"].erase(2);
  run["steps"].erase(2);
  expect_row(rows_of(text_of({put("short.json", run)})),
             {"short.json", "0", "100.00", "95.00", "4.00", "1.00"});
}

TEST_F(Report, FilesOfOneNameAreNamedByTheirPaths) {
  const std::string other = put("other/two.json", run_of_two_ranks());
  const std::string text = text_of({two_, other});
  EXPECT_PRED2(contains, text, two_ + ": train: ");
  EXPECT_PRED2(contains, text, other + ": train: ");
}

TEST_F(Report, PrintsTheLastStepOfATrace) {
  const std::vector<Words> rows = rows_of(text_of({two_, "--profile", trace_}));
  expect_row(rows, {"last step, ms", "all", "computing", "communicating", "waiting", "host"});
  expect_row(rows, {"rank 0", "30.00", "16.00", "5.00", "3.00", "6.00"});
  expect_row(rows, {"rank 1", "1.00", "0.00", "0.00", "0.00", "1.00"});
}

TEST_F(Report, WritesAPageWithTheFiguresOfAllRuns) {
  const json data = page_of({two_, one_, "--profile", trace_});
  ASSERT_EQ(data["runs"].size(), 2u);
  const json &two = data["runs"][0], &one = data["runs"][1];
  EXPECT_EQ(two["description"], "train: a <small> model");
  EXPECT_EQ(two["steps"], (json{{"step", {1, 2, 3, 4}},
                                {"loss", {4., 3., 2., 1.}},
                                {"ms", {200., 100., 20., 30.}},
                                {"validation", {{2, 2.75}}}}));
  EXPECT_EQ(two["planned"], (json{{"computing_ms", 16.}, {"communicating_ms", 4.}}));
  EXPECT_EQ(one["planned"], json());
  const json& rank = two["ranks"][1];
  EXPECT_EQ(rank["computing_ms"], 15.);
  EXPECT_EQ(rank["waiting_ms"], 2.);
  EXPECT_EQ(rank["memory"], (json{1000000, 2000000, 3000000, 4000000, 5000000}));
  EXPECT_EQ(rank["planned_memory"], (json{1000000, 2000000, 3000000, 4500000, 5000000}));
  EXPECT_EQ(one["ranks"][0]["waiting_ms"], json());
  EXPECT_EQ(one["ranks"][0]["copied_bytes"], json());
  EXPECT_EQ(data["differences"],
            (json{{{"name", "one.json"}, {"steps", 2}, {"equal", 1}, {"largest", 0.5}}}));
}

TEST_F(Report, LayersWithEqualShapesShareARow) {
  const json rows = page_of({two_})["runs"][0]["shapes"];
  const json names{"embed", "layers.*.up", "layers.*.down", "layers.*.up"}, counts{1, 2, 1, 1};
  ASSERT_EQ(rows.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[i]["name"], names[i]);
    EXPECT_EQ(rows[i]["parameters"], counts[i]);
  }
  EXPECT_EQ(rows[1]["rank_shapes"], (json{{2, 6}, {2, 6}}));
}

TEST_F(Report, TheTimelineHasTheLastStepFromItsEarliestStart) {
  const json ranks = page_of({two_, "--profile", trace_})["timeline"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0]["ops"], (json{{"step", "layer 0", 0., 30000., 0., 0, false},
                                   {"product", "layer 0", 1000., 10000., 0., 1, false},
                                   {"all_reduce", "layer 0", 12000., 8000., 3000., 1, true},
                                   {"outer", "layer 0", 20000., 6000., 0., 1, false},
                                   {"product", "layer 0", 21000., 2000., 0., 2, false}}));
  EXPECT_EQ(ranks[1]["ops"], (json{{"step", "layer 0", 500., 1000., 0., 0, false}}));
}

TEST_F(Report, APageKeepsItsScriptWhateverNamesAre) {
  json run = run_of_two_ranks();
  run["run"]["description"] = "</script><!--<script>";
  const std::string file = put("run.json", run);
  EXPECT_EQ(page_of({file})["runs"][0]["description"], "</script><!--<script>");
  const std::string page = test::contents(scratch_ / "page.html");
  EXPECT_FALSE(contains(page, "<!--"));
  EXPECT_FALSE(contains(page, "{{"));
  EXPECT_FALSE(contains(page, "://")) << "the page must need no network";
}

TEST_F(Report, RefusesBadRuns) {
  const auto refused = [&](const std::string& file, const Words& named) {
    expect_refused("report", {{file, ""}, {"--out", scratch_ / "page.html"}}, named);
  };
  expect_refused("report", {}, {"RUN must name files", "got none"});
  refused(scratch_ / "missing", {"missing", "must be a readable file"});
  scratch_.put("directory/file", "");
  refused(scratch_ / "directory", {"must be a regular file; got a directory"});
  refused(scratch_.put("text.json", "steps"), {"text.json", "must be JSON"});
  for (const char* other : {"[]", "{}", "3", "{\"run\": 3}"})
    refused(scratch_.put("other.json", other),
            {"RUN must be a file that train --report wrote", "other.json"});
  refused(trace_, {"RUN must be a file that train --report wrote", "trace.json"});
  const auto changed = [&](const char* pointer, const json& value, const Words& named) {
    json run = run_of_two_ranks();
    run[json::json_pointer(pointer)] = value;
    Words all = named;
    all.push_back("changed.json");
    refused(put("changed.json", run), all);
  };
  changed("/run/tp", 0, {"run.tp must be 1 or more", "got 0"});
  changed("/run/tp", int64_t{1} << 31, {"run.tp must be at most 1073741824", "got 2147483648"});
  changed("/run/dp", int64_t{1} << 62, {"run.dp must be at most 1073741824", "got"});
  changed("/run/dp", 2, {"ranks"});  // of which there are two, not four
  changed("/run/tp", 3, {"ranks must be a list of 3, one for each rank"});
  changed("/run/description", 5, {"run.description must be a string"});
  changed("/run/planned_compute_seconds", nullptr, {"planned_compute_seconds must be given"});
  changed("/run/measured_step_seconds", -1, {"measured_step_seconds must be a number from 0", "got -1"});
  changed("/steps", json::array(), {"steps must be a list that is not empty"});
  changed("/steps/1/loss", "low", {"steps.loss must be a number"});
  changed("/steps/1/step_ms", {1}, {"steps.step_ms must be a list of 2, one for each rank"});
  changed("/steps/1/comm_ms", {1, -2}, {"steps.comm_ms must be a number from 0", "got -2"});
  changed("/steps/2/step", 2, {"the numbers of steps must be ascending", "got 2"});
  changed("/ranks/0/memory/optimizer", nullptr, {"ranks.memory.optimizer must be given"});
  changed("/ranks/0/comm_bytes", 1.5, {"ranks.comm_bytes must be an integer"});
  changed("/parameters/0/shape", {1, -1}, {"parameters.shape must be a list of sizes"});
  changed("/parameters/0/rank_shapes", {{1}}, {"parameters.rank_shapes must be a list of 2"});
}

TEST_F(Report, RefusesBadTraces) {
  const auto refused = [&](const std::string& file, const Words& named) {
    expect_refused("report", {{two_, ""}, {"--profile", file}}, named);
  };
  refused(scratch_ / "missing", {"missing", "must be a readable file"});
  refused(two_, {"--profile must be a trace that --profile of another command wrote", "two.json"});
  refused(put("none.json", {{"traceEvents", json::array()}}), {"--profile must be a trace", "none.json"});
  json trace = trace_of_two_ranks();
  trace["traceEvents"][2]["dur"] = "long";
  refused(put("bad.json", trace), {"bad.json: traceEvents.dur must be a number"});
}

TEST_F(Report, RefusesBadOutputs) {
  const auto refused = [&](const std::string& out, const Words& named) {
    expect_refused("report", {{two_, ""}, {"--profile", trace_}, {"--out", out}}, named);
  };
  refused(scratch_ / "none/page.html",
          {"--out must be in a directory that can be written to", "none/page.html"});
  refused(two_, {"--out must not overwrite an input", "two.json"});
  refused(trace_, {"--out must not overwrite an input", "trace.json"});
  refused(scratch_.path(), {"--out must be a regular file or a new path"});
  refused("/dev/null", {"--out must be a regular file or a new path"});
  const test::WithoutRights user;
  const std::string error = usage_error({"shardwise", "report", two_, "--out", scratch_ / "page.html"});
  EXPECT_PRED2(contains, error, "--out must be in a directory that can be written to");
}

TEST(Braille, DrawsLinesThroughPoints) {
  using Lines = Words;
  // Dots 1, 2, 6 and 8 of a character.
  EXPECT_EQ(braille_curve({{0, 3}, {1, 0}}, {1, 1, 0, 1, 0, 3}), (Lines{"\u28A3"}));
  EXPECT_EQ(braille_curve({{0, 0}, {3, 0}}, {2, 1, 0, 3, 0, 3}), (Lines{"\u28C0\u28C0"}));
  EXPECT_EQ(braille_curve({{0, 7}}, {1, 2, 0, 1, 0, 7}), (Lines{"\u2801", "\u2800"}));
  EXPECT_EQ(braille_curve({{1, 7}, {1, 0}}, {1, 2, 0, 1, 0, 7}), (Lines{"\u28B8", "\u28B8"}));
  EXPECT_EQ(braille_curve({{0, 99}, {1, -99}}, {1, 1, 0, 1, 0, 3}), (Lines{"\u28A3"}));
}

}  // namespace
}  // namespace shardwise::cli::report_test
