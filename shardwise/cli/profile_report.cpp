#include "shardwise/cli/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/base/files.h"
#include "shardwise/base/log.h"
#include "shardwise/cli/table.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/config/parameters.h"
#include "shardwise/doctor/results.h"

namespace shardwise::cli {

using nlohmann::json;

namespace {

constexpr const char* kHost = "host";  // an outermost op's time outside the ops within
constexpr const char* kWaiting = "waiting for ranks";

std::string layer_of(const std::string& parameter) {
  return parameter.empty() ? "none" : doctor::label_of(parameter).module;
}

/// Products differ in shape, so their table rows name the module.
std::string name_of(const std::string& op, const std::string& parameter) {
  const bool is_product = op.ends_with("product") || op == "weight_gradient";
  return is_product ? op + " " + config::module_name(parameter) : op;
}

/// Times in ns of one rank under one kind of outermost op.
struct Times {
  int64_t roots = 0, total = 0;
  std::map<std::string, int64_t> by_op, by_layer;
};

std::map<std::string, Times> times_of(const json& rank) {
  std::map<std::string, Times> all;
  Times* times = nullptr;
  for (const json& run : rank.at("runs")) {
    const std::string op = run[0],
                      &part = rank.at("parts")[run[1].get<size_t>()].get_ref<const std::string&>();
    const int64_t duration = run[4], waiting = run[6], own = duration - run[5].get<int64_t>() - waiting;
    if (run[2] == 0) {
      times = &all[op];
      times->roots += 1;
      times->total += duration;
      times->by_op[kHost] += own;
      continue;
    }
    times->by_op[name_of(op, part)] += own;
    if (waiting > 0) times->by_op[kWaiting] += waiting;
    times->by_layer[layer_of(part)] += own + waiting;
  }
  return all;
}

json to_json(const base::Profile& profile) {
  json runs = json::array();
  for (const base::ProfiledRun& run : profile.runs()) {
    runs.push_back(
        {run.op, run.part, run.depth, run.begin_ns, run.duration_ns, run.nested_ns, run.waiting_ns});
  }
  return {{"parts", profile.parts()}, {"runs", runs}};
}

/// Source: "Trace Event Format", complete events.
json trace_of(const std::vector<json>& ranks) {
  json events = json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    events.push_back({{"name", "process_name"},
                      {"ph", "M"},
                      {"pid", rank},
                      {"args", {{"name", fmt::format("rank {}", rank)}}}});
    for (const json& run : ranks[rank].at("runs")) {
      const json& part = ranks[rank].at("parts")[run[1].get<size_t>()];
      events.push_back({{"name", run[0]},
                        {"cat", layer_of(part)},
                        {"ph", "X"},
                        {"pid", rank},
                        {"tid", 0},
                        {"ts", run[3].get<double>() / 1e3},
                        {"dur", run[4].get<double>() / 1e3},
                        {"args", {{"part", part}, {"waiting_us", run[6].get<double>() / 1e3}}}});
    }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", events}};
}

/// One rank's times by name.
using Column = std::map<std::string, int64_t>;

/// Returns the names in any column, the longest times first.
std::vector<std::string> names_by_time(const std::vector<Column>& columns) {
  std::map<std::string, int64_t> longest;
  for (const Column& column : columns)
    for (const auto& [name, ns] : column) longest[name] = std::max(longest[name], ns);
  std::vector<std::string> names;
  for (const auto& [name, ns] : longest) names.push_back(name);
  std::ranges::stable_sort(names, [&](const auto& a, const auto& b) { return longest[a] > longest[b]; });
  return names;
}

/// Returns the layers in any column, in the order of the model.
std::vector<std::string> layers_in_order(const std::vector<Column>& columns) {
  std::set<std::pair<std::pair<int, int>, std::string>> layers;
  for (const Column& column : columns) {
    for (const auto& [name, ns] : column) {
      const bool is_block = name.starts_with("layer ");
      const int place = name == "embedding"    ? 0
                        : is_block             ? 1
                        : name == "final norm" ? 2
                        : name == "head"       ? 3
                                               : 4;
      layers.insert({{place, is_block ? std::stoi(name.substr(6)) : 0}, name});
    }
  }
  std::vector<std::string> names;
  for (const auto& [place, name] : layers) names.push_back(name);
  return names;
}

/// A row for each name: its milliseconds on each rank, per root, and its share of all of rank 0's time.
std::string table_of(const std::string& title, const std::vector<Times>& ranks,
                     const std::vector<Column>& columns, const std::vector<std::string>& names) {
  Row head = {title};
  for (size_t rank = 0; rank < ranks.size(); ++rank) head.push_back(fmt::format("rank {}", rank));
  head.push_back("share");
  std::vector<Row> rows = {head};
  const auto milliseconds = [&](size_t rank, int64_t ns) {
    return fmt::format("{:.3f}", static_cast<double>(ns) / 1e6 / static_cast<double>(ranks[rank].roots));
  };
  const auto add = [&](const std::string& name, const auto& ns_of) {
    Row row = {name};
    for (size_t rank = 0; rank < ranks.size(); ++rank) row.push_back(milliseconds(rank, ns_of(rank)));
    row.push_back(
        fmt::format("{:.1f} %", 100. * double(ns_of(0)) / double(std::max<int64_t>(ranks[0].total, 1))));
    rows.push_back(std::move(row));
  };
  for (const std::string& name : names) {
    add(name, [&](size_t rank) {
      const auto found = columns[rank].find(name);
      return found == columns[rank].end() ? int64_t{0} : found->second;
    });
  }
  add("all", [&](size_t rank) { return ranks[rank].total; });
  return table(rows);
}

void log_tables(const std::string& command, const std::vector<json>& ranks) {
  std::vector<std::map<std::string, Times>> times;
  for (const json& rank : ranks) times.push_back(times_of(rank));
  for (const auto& [root, unused] : times[0]) {
    std::vector<Times> of_root;
    std::vector<Column> by_op, by_layer;
    for (auto& rank : times) {
      of_root.push_back(rank[root]);
      by_op.push_back(rank[root].by_op);
      by_layer.push_back(rank[root].by_layer);
    }
    base::log_info(fmt::format("{}: mean of {} profiled {}s, milliseconds:\n{}\n{}", command,
                               of_root[0].roots, root, table_of("op", of_root, by_op, names_by_time(by_op)),
                               table_of("layer", of_root, by_layer, layers_in_order(by_layer))));
  }
}

}  // namespace

void report_profile(const std::string& command, const std::string& file, const base::Profile& profile,
                    const comm::Group& group) {
  const std::vector<std::string> texts = comm::gather_texts(to_json(profile).dump(), group);
  if (group.rank() != 0) return;
  std::vector<json> ranks;
  for (const std::string& text : texts) ranks.push_back(json::parse(text));
  log_tables(command, ranks);
  base::write_text(file, trace_of(ranks).dump());
}

void check_profile_file(const std::string& command, const std::string& file) {
  TORCH_CHECK_VALUE(!base::is_directory(file), command, ": --profile must be a file; got the directory ",
                    file, " [SW0725]");
  base::check_new_or_regular_file(command + ": --profile", file);
}

}  // namespace shardwise::cli
