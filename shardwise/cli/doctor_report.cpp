#include "shardwise/cli/doctor_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/cli/table.h"
#include "shardwise/doctor/bound.h"

namespace shardwise::cli {

using base::Color;
using doctor::Audit;
using doctor::Comparison;
using doctor::Deviation;
using doctor::Traffic;
using doctor::Worst;
using Json = nlohmann::ordered_json;

namespace {

// ---- lines

std::string relative(const Deviation* worst) {
  return worst ? fmt::format("{:.1e}", worst->relative()) : "";
}
std::string share(const Deviation* worst) {
  return worst ? fmt::format("{:.2f}", worst->share()) : "";
}

bool is_bug(const Deviation* worst) {
  return worst && !worst->holds();
}

/// The tables' lines, with those that tell of a bug in red.
class Lines {
 public:
  void add(const std::string& text, bool is_wrong = false) {
    lines_.push_back({text, is_wrong ? Color::kRed : Color::kNone});
  }
  /// `wrong` by row.
  void add_table(const std::vector<Row>& rows, const std::vector<bool>& wrong) {
    std::istringstream text(table(rows));
    std::string line;
    for (size_t i = 0; std::getline(text, line); ++i) add(line, wrong[i]);
  }
  std::vector<ReportLine> take() { return std::move(lines_); }

 private:
  std::vector<ReportLine> lines_;
};

bool is_of_same_way(const Comparison& a, const Comparison& b) {
  return a.task == b.task && a.way.name(a.tp) == b.way.name(b.tp);
}

/// One way in fp64 and in the run's dtype, layer by layer.
void add_layers(Lines& lines, const Comparison& exact, const Comparison& rounded) {
  const std::string dtype = doctor::dtype_name(rounded.way.dtype);
  lines.add(fmt::format("\n{}, {}: the largest difference from TP=1 in fp64, of the largest value",
                        exact.task, exact.way.name(exact.tp)));
  std::vector<Row> rows{{"where", "fp64 activations", "gradients", dtype + " activations", "of bound",
                         "gradients", "of bound"}};
  std::vector<bool> wrong{false};
  const std::vector<Worst> in_exact = exact.by_layer(), in_rounded = rounded.by_layer();
  for (size_t i = 0; i < std::min(in_exact.size(), in_rounded.size()); ++i) {
    const Worst &e = in_exact[i], &r = in_rounded[i];
    wrong.push_back(is_bug(e.activation) || is_bug(e.gradient) || is_bug(r.activation) || is_bug(r.gradient));
    rows.push_back({e.where + (wrong.back() ? ": beyond" : ""), relative(e.activation), relative(e.gradient),
                    relative(r.activation), share(r.activation), relative(r.gradient), share(r.gradient)});
  }
  lines.add_table(rows, wrong);
}

/// The largest share of its bound that anything takes.
const Deviation& nearest(const Comparison& comparison) {
  return *std::ranges::max_element(comparison.deviations, {}, &Deviation::share);
}

void add_comparisons(Lines& lines, const std::vector<Comparison>& all) {
  for (const Comparison& one : all) {
    const auto rounded = std::ranges::find_if(
        all, [&](const Comparison& other) { return !other.way.is_exact() && is_of_same_way(one, other); });
    if (one.way.is_exact() && rounded != all.end()) add_layers(lines, one, *rounded);
  }
  lines.add("");
  for (const Comparison& one : all) {
    const bool is_alone =
        std::ranges::count_if(all, [&](const Comparison& other) { return is_of_same_way(one, other); }) == 1;
    if (!is_alone) continue;
    const Deviation& worst = nearest(one);
    lines.add(fmt::format("{}: {:.1e} at most, at {}, {}", one.name(), worst.relative(), worst.label.where,
                          worst.label.text()),
              !worst.holds());
  }
}

/// Those of one name that hold share a line.
void add_audits(Lines& lines, const std::vector<Audit>& audits) {
  std::vector<Row> rows;
  std::vector<bool> wrong;
  for (const Audit& audit : audits) {
    const auto is_alike = [&](const Audit& other) { return other.holds && other.name == audit.name; };
    const auto first = std::ranges::find_if(audits, is_alike);
    if (audit.holds && &audit != &*first) continue;
    const auto alike = audit.holds ? std::ranges::count_if(audits, is_alike) : 1;
    const std::string more = alike > 1 ? fmt::format(" (and {} more)", alike - 1) : "";
    rows.push_back({audit.holds ? "holds" : "WRONG", audit.title() + more, audit.detail});
    wrong.push_back(!audit.holds);
  }
  lines.add("");
  lines.add_table(rows, wrong);
}

/// Rank 0's of the training step in the run's dtype, and every line that is wrong.
void add_traffic(Lines& lines, const std::vector<Traffic>& all) {
  lines.add("\nsent by a rank of a training step");
  std::vector<Row> rows{
      {"way", "dtype", "rank", "phase", "collective", "calls", "by formula", "bytes", "by formula"}};
  std::vector<bool> wrong{false};
  for (const Traffic& line : all) {
    const bool is_shown = line.rank == 0 && line.task == "training" && !line.way.is_exact();
    if (line.holds() && !is_shown) continue;
    rows.push_back({line.way.name(line.tp), doctor::dtype_name(line.way.dtype), std::to_string(line.rank),
                    line.phase, line.collective, std::to_string(line.counted.calls),
                    std::to_string(line.expected.calls), std::to_string(line.counted.bytes),
                    std::to_string(line.expected.bytes)});
    wrong.push_back(!line.holds());
  }
  lines.add_table(rows, wrong);
  const auto right = std::ranges::count_if(all, &Traffic::holds);
  lines.add(
      fmt::format("{} of {} figures of all ranks and ways are those of the formulas", right, all.size()),
      right != std::ssize(all));
}

// ---- JSON

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);  // JSON has no other
}

Json to_json(const Deviation* worst) {
  if (!worst) return nullptr;
  return {{"tensor", worst->label.text()},
          {"difference", number(worst->difference)},
          {"largest", number(worst->scale)},
          {"bound", number(worst->bound)},
          {"holds", worst->holds()}};
}

Json to_json(const Comparison& comparison) {
  Json json{{"task", comparison.task},
            {"way", comparison.way.name(comparison.tp)},
            {"dtype", doctor::dtype_name(comparison.way.dtype)},
            {"grad_norm", number(comparison.norm)},
            {"holds", comparison.first_bug() == nullptr},
            {"layers", Json::array()}};
  for (const Worst& worst : comparison.by_layer())
    json["layers"].push_back({{"where", worst.where},
                              {"activations", to_json(worst.activation)},
                              {"gradients", to_json(worst.gradient)}});
  return json;
}

Json to_json(const Traffic& line) {
  return {{"task", line.task},
          {"way", line.way.name(line.tp)},
          {"dtype", doctor::dtype_name(line.way.dtype)},
          {"rank", line.rank},
          {"phase", line.phase},
          {"collective", line.collective},
          {"calls", line.counted.calls},
          {"bytes", line.counted.bytes},
          {"expected_calls", line.expected.calls},
          {"expected_bytes", line.expected.bytes}};
}

}  // namespace

std::vector<ReportLine> to_lines(const Examined& examined) {
  const doctor::Report& report = examined.report;
  Lines lines;
  lines.add(fmt::format("doctor: {} in {} on {} ranks, 2 sequences of {} tokens", examined.model,
                        examined.dtype, examined.tp, examined.seq_len));
  add_comparisons(lines, report.comparisons);
  add_audits(lines, report.audits);
  add_traffic(lines, report.traffic);
  const auto finding = report.finding();
  lines.add("");
  lines.add(
      finding.value_or(fmt::format("rounding: TP={0} and TP={0}+SP compute what TP=1 does", examined.tp)),
      finding.has_value());
  return lines.take();
}

std::string to_json(const Examined& examined) {
  const doctor::Report& report = examined.report;
  const auto finding = report.finding();
  Json json{{"model", examined.model},
            {"tp", examined.tp},
            {"dtype", examined.dtype},
            {"seq_len", examined.seq_len},
            {"verdict", finding ? "bug" : "rounding"},
            {"bug", finding ? Json(*finding) : Json(nullptr)}};
  for (const Comparison& comparison : report.comparisons) json["comparisons"].push_back(to_json(comparison));
  for (const Audit& audit : report.audits)
    json["audits"].push_back(
        {{"name", audit.name}, {"of", audit.of}, {"holds", audit.holds}, {"detail", audit.detail}});
  for (const Traffic& line : report.traffic) json["traffic"].push_back(to_json(line));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shardwise::cli
