#include "shardwise/cli/doctor_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/cli/output.h"
#include "shardwise/cli/table.h"
#include "shardwise/doctor/results.h"

namespace shardwise::cli {

using base::Color;
using doctor::Check;
using doctor::Comparison;
using doctor::Deviation;
using doctor::LargestDeviations;
using doctor::TrafficLine;
using Json = nlohmann::ordered_json;

namespace {

// ---- Text

std::string relative(const Deviation* worst) {
  return worst ? fmt::format("{:.1e}", worst->relative()) : "";
}
std::string bound_ratio(const Deviation* worst) {
  return worst ? fmt::format("{:.2f}", worst->bound_ratio()) : "";
}

bool is_bug(const Deviation* worst) {
  return worst && !worst->is_within_bound();
}

/// Builds the report's lines, with those of bugs in red.
class Lines {
 public:
  void add(const std::string& text, bool is_wrong = false) {
    lines_.push_back({text, is_wrong ? Color::red : Color::none});
  }
  /// `wrong` has one element per row.
  void add_table(const std::vector<Row>& rows, const std::vector<bool>& wrong) {
    std::istringstream text(table(rows));
    std::string line;
    for (size_t i = 0; std::getline(text, line); ++i) add(line, wrong[i]);
  }
  std::vector<ReportLine> take() { return std::move(lines_); }

 private:
  std::vector<ReportLine> lines_;
};

bool has_same_run_config(const Comparison& a, const Comparison& b) {
  return a.test_case == b.test_case && a.run_config.name(a.tp) == b.run_config.name(b.tp);
}

/// Adds a table of one run configuration in fp64 and in the run's dtype, layer by layer.
void add_layers(Lines& lines, const Comparison& exact, const Comparison& rounded) {
  const std::string dtype = doctor::dtype_name(rounded.run_config.dtype);
  lines.add(fmt::format("\n{}, {}: largest difference from TP=1 in fp64, relative to the largest value",
                        exact.test_case, exact.run_config.name(exact.tp)));
  std::vector<Row> rows{{"where", "fp64 activations", "gradients", dtype + " activations", "of bound",
                         "gradients", "of bound"}};
  std::vector<bool> wrong{false};
  const std::vector<LargestDeviations> in_exact = exact.by_layer(), in_rounded = rounded.by_layer();
  for (size_t i = 0; i < std::min(in_exact.size(), in_rounded.size()); ++i) {
    const LargestDeviations &e = in_exact[i], &r = in_rounded[i];
    wrong.push_back(is_bug(e.activation) || is_bug(e.gradient) || is_bug(r.activation) || is_bug(r.gradient));
    rows.push_back({e.module + (wrong.back() ? ": BUG" : ""), relative(e.activation), relative(e.gradient),
                    relative(r.activation), bound_ratio(r.activation), relative(r.gradient),
                    bound_ratio(r.gradient)});
  }
  lines.add_table(rows, wrong);
}

/// Returns the deviation with the largest bound ratio.
const Deviation& largest_deviation(const Comparison& comparison) {
  return *std::ranges::max_element(comparison.deviations, {}, &Deviation::bound_ratio);
}

void add_comparisons(Lines& lines, const std::vector<Comparison>& all) {
  for (const Comparison& one : all) {
    const auto rounded = std::ranges::find_if(all, [&](const Comparison& other) {
      return !other.run_config.is_fp64() && has_same_run_config(one, other);
    });
    if (one.run_config.is_fp64() && rounded != all.end()) add_layers(lines, one, *rounded);
  }
  lines.add("");
  for (const Comparison& one : all) {
    const bool is_single = std::ranges::count_if(all, [&](const Comparison& other) {
                             return has_same_run_config(one, other);
                           }) == 1;
    if (!is_single) continue;
    const Deviation& worst = largest_deviation(one);
    lines.add(fmt::format("{}: largest relative difference {:.1e}, at {}, {}", one.name(), worst.relative(),
                          worst.label.module, worst.label.text()),
              !worst.is_within_bound());
  }
}

/// Checks of one name that pass share a line.
void add_checks(Lines& lines, const std::vector<Check>& checks) {
  std::vector<Row> rows;
  std::vector<bool> wrong;
  for (const Check& check : checks) {
    const auto is_similar = [&](const Check& other) { return other.passed && other.name == check.name; };
    const auto first = std::ranges::find_if(checks, is_similar);
    if (check.passed && &check != &*first) continue;
    const auto similar = check.passed ? std::ranges::count_if(checks, is_similar) : 1;
    const std::string more = similar > 1 ? fmt::format(" (and {} more)", similar - 1) : "";
    rows.push_back({check.passed ? "ok" : "FAILED", check.title() + more, check.detail});
    wrong.push_back(!check.passed);
  }
  lines.add("");
  lines.add_table(rows, wrong);
}

/// Adds rank 0's traffic in the training step in the run's dtype, and every mismatch.
void add_traffic(Lines& lines, const std::vector<TrafficLine>& all) {
  lines.add("\ncommunication of a training step");
  std::vector<Row> rows{{"configuration", "dtype", "rank", "phase", "collective", "calls", "by formula",
                         "bytes", "by formula"}};
  std::vector<bool> wrong{false};
  for (const TrafficLine& line : all) {
    const bool is_shown = line.rank == 0 && line.test_case == "training" && !line.run_config.is_fp64();
    if (line.matches() && !is_shown) continue;
    rows.push_back({line.run_config.name(line.tp), doctor::dtype_name(line.run_config.dtype),
                    std::to_string(line.rank), line.phase, line.collective,
                    std::to_string(line.counted.calls), std::to_string(line.expected.calls),
                    std::to_string(line.counted.bytes), std::to_string(line.expected.bytes)});
    wrong.push_back(!line.matches());
  }
  lines.add_table(rows, wrong);
  const auto matching = std::ranges::count_if(all, &TrafficLine::matches);
  lines.add(fmt::format("{} of {} counters match the formulas", matching, all.size()),
            matching != std::ssize(all));
}

// ---- JSON

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);  // JSON has no NaN or Inf
}

Json to_json(const Deviation* worst) {
  if (!worst) return nullptr;
  return {{"tensor", worst->label.text()},
          {"difference", number(worst->difference)},
          {"reference_max", number(worst->scale)},
          {"bound", number(worst->bound)},
          {"within_bound", worst->is_within_bound()}};
}

Json to_json(const Comparison& comparison) {
  Json json{{"test_case", comparison.test_case},
            {"run_config", comparison.run_config.name(comparison.tp)},
            {"dtype", doctor::dtype_name(comparison.run_config.dtype)},
            {"grad_norm", number(comparison.norm)},
            {"passed", comparison.first_bug() == nullptr},
            {"layers", Json::array()}};
  for (const LargestDeviations& worst : comparison.by_layer())
    json["layers"].push_back({{"module", worst.module},
                              {"activations", to_json(worst.activation)},
                              {"gradients", to_json(worst.gradient)}});
  return json;
}

Json to_json(const TrafficLine& line) {
  return {{"test_case", line.test_case},
          {"run_config", line.run_config.name(line.tp)},
          {"dtype", doctor::dtype_name(line.run_config.dtype)},
          {"rank", line.rank},
          {"phase", line.phase},
          {"collective", line.collective},
          {"calls", line.counted.calls},
          {"bytes", line.counted.bytes},
          {"expected_calls", line.expected.calls},
          {"expected_bytes", line.expected.bytes}};
}

}  // namespace

std::vector<ReportLine> to_lines(const DoctorReport& doctor_report) {
  const doctor::Report& report = doctor_report.report;
  Lines lines;
  lines.add(fmt::format("doctor: {} in {} on {} ranks, 2 sequences of {} tokens", doctor_report.model,
                        doctor_report.dtype, doctor_report.tp, doctor_report.seq_len));
  add_comparisons(lines, report.comparisons);
  add_checks(lines, report.checks);
  add_traffic(lines, report.traffic);
  const auto bug = report.bug_summary();
  lines.add("");
  lines.add(bug.value_or(
                fmt::format("rounding: TP={0} and TP={0}+SP match TP=1 within rounding", doctor_report.tp)),
            bug.has_value());
  return lines.take();
}

std::string to_json(const DoctorReport& doctor_report) {
  const doctor::Report& report = doctor_report.report;
  const auto bug = report.bug_summary();
  Json json{{"model", doctor_report.model},        {"tp", doctor_report.tp},
            {"dtype", doctor_report.dtype},        {"seq_len", doctor_report.seq_len},
            {"verdict", bug ? "bug" : "rounding"}, {"bug", bug ? Json(*bug) : Json(nullptr)}};
  for (const Comparison& comparison : report.comparisons) json["comparisons"].push_back(to_json(comparison));
  for (const Check& check : report.checks)
    json["checks"].push_back(
        {{"name", check.name}, {"scope", check.scope}, {"passed", check.passed}, {"detail", check.detail}});
  for (const TrafficLine& line : report.traffic) json["traffic"].push_back(to_json(line));
  return json_line(json);
}

}  // namespace shardwise::cli
