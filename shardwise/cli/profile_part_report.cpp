// The table and the JSON document of `shardwise profile mlp` and `profile block`.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/profile.h"
#include "shardwise/cli/profile_part.h"
#include "shardwise/cli/table.h"
#include "shardwise/cli/units.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;

std::string in_ms(double us) {
  return fmt::format("{:.3f}", us / 1e3);
}

bool compares(const PartTable& table) {
  return std::ranges::any_of(
      table.rows, [](const PartRow& row) { return row.measured && row.measured->difference.has_value(); });
}

bool is_any_oversubscribed(const PartTable& table) {
  return std::ranges::any_of(
      table.rows, [](const PartRow& row) { return row.measured && row.measured->is_oversubscribed; });
}

double rows_per_second_per_rank(const PartTable& table, const PartRow& row, double us) {
  const auto tokens = static_cast<double>(table.shape.seq_len * table.shape.batch_size);
  return tokens / us * 1e6 / static_cast<double>(row.ranks);
}

double rows_per_second_per_rank(const PartTable& table, const PartRow& row) {
  return rows_per_second_per_rank(table, row, row.together_us);
}

std::optional<double> model_rows_per_second_per_rank(const PartTable& table, const PartRow& row,
                                                     const std::optional<bench::RateFit>& fit) {
  const std::optional<double> us = table.model_us(row, fit);
  if (!us) return std::nullopt;
  return rows_per_second_per_rank(table, row, *us);
}

/// The cells that a measured and a computed row share, after those of the times.
void append_results(Row& cells, const PartTable& table, const PartRow& row) {
  cells.push_back(fmt::format("{:.1f} %", 100 * row.communication_share()));
  cells.push_back(fmt::format("{:.2f}x", row.speed_up));
  cells.push_back(fmt::format("{:.0f}", rows_per_second_per_rank(table, row)));
  cells.push_back(fmt::format("{:.1f}", megabytes(row.weight_bytes)));
  if (table.largest) cells.push_back(table.largest->text(row.ranks));
}

/// Adds the columns after those of append_results.
void append_last(Row& head, const PartTable& table) {
  if (table.largest) head.emplace_back("largest batch");
}

/// Across hosts the model has no two constants: it is the network's time over the measured computation.
std::optional<double> model_ratio(const PartTable& table, const PartRow& row,
                                  const std::optional<bench::RateFit>& fit) {
  if (row.nodes == 1) return fit ? std::optional(fit->ratio(row.costs)) : std::nullopt;
  const std::optional<double> us = table.model_us(row, fit);
  return us ? std::optional(*us / row.compute_us - 1) : std::nullopt;
}

std::string text_or_dash(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

Row measured_cells(const PartTable& table, const PartRow& row, const std::optional<bench::RateFit>& fit) {
  const bench::PartMeasured& m = *row.measured;
  const bench::Spread& raw = m.together.raw;
  Row cells{std::to_string(row.ranks),
            std::to_string(row.hidden),
            in_ms(row.compute_us),
            in_ms(row.communication_us),
            in_ms(row.together_us),
            in_ms(raw.lower_quartile_us) + "-" + in_ms(raw.upper_quartile_us),
            in_ms(m.overlap_us()),
            fmt::format("{:.4f}", row.ratio()),
            text_or_dash(model_ratio(table, row, fit), 4)};
  append_results(cells, table, row);
  if (compares(table)) {
    const auto& d = m.difference;
    cells.push_back(d ? fmt::format("{:.2e}", d->largest) : "-");
    cells.push_back(d ? fmt::format("{:.2e}", d->bound) : "-");
  }
  if (is_any_oversubscribed(table)) cells.push_back(m.is_oversubscribed ? "oversubscribed" : "own");
  if (table.network) {
    cells.push_back(text_or_dash(model_rows_per_second_per_rank(table, row, fit), 0));
    cells.push_back(hosts_text(*table.network, row.ranks));
  }
  return cells;
}

std::string measured_text(const PartTable& table) {
  Row head{"ranks", "hidden",      "compute ms", "comm ms",  "together ms",     "quartiles",  "overlap ms",
           "ratio", "model ratio", "comm share", "speed-up", "rows/s per rank", "MB per rank"};
  append_last(head, table);
  if (compares(table)) head.insert(head.end(), {"difference", "bound"});
  if (is_any_oversubscribed(table)) head.emplace_back("cores");
  if (table.network) head.insert(head.end(), {"model rows/s per rank", "hosts"});
  std::vector<Row> rows{head};
  const auto fit = table.fit();
  for (const PartRow& row : table.rows) rows.push_back(measured_cells(table, row, fit));
  return cli::table(rows);
}

std::string modeled_text(const PartTable& table) {
  std::vector<Row> rows{{"ranks", "nodes", "hidden", "compute ms", "comm ms", "together ms", "ratio",
                         "comm share", "speed-up", "rows/s per rank", "MB per rank"}};
  append_last(rows[0], table);
  for (const PartRow& row : table.rows) {
    Row cells{std::to_string(row.ranks),         std::to_string(row.nodes),
              std::to_string(row.hidden),        in_ms(row.compute_us),
              in_ms(row.communication_us),       in_ms(row.together_us),
              fmt::format("{:.4f}", row.ratio())};
    append_results(cells, table, row);
    rows.push_back(cells);
  }
  return cli::table(rows);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

std::string fit_text(const std::optional<bench::RateFit>& fit) {
  if (!fit) return "";
  std::string text = fmt::format("model ratio: {:.1f} GFLOP/s and {:.2f} GB/s per rank",
                                 fit->flop_per_second / 1e9, fit->bytes_per_second / 1e9);
  if (fit->held_out_errors.empty()) return text + ", from this one row\n";
  return text + fmt::format("; error of a row that is left out: median {:.0f} %, largest {:.0f} %\n",
                            100 * median(fit->held_out_errors), 100 * std::ranges::max(fit->held_out_errors));
}

ordered_json to_json(const bench::PartMeasured& m) {
  return {{"oversubscribed", m.is_oversubscribed},
          {"repetitions", m.together.repetitions},
          {"together", bench::to_json(m.together.raw)},
          {"compute", bench::to_json(m.compute.raw)},
          {"communication", bench::to_json(m.communication.raw)},
          {"overlap_us", m.overlap_us()}};
}

ordered_json to_json(const bench::OutputDifference& d) {
  return {
      {"largest", d.largest}, {"scale", d.scale}, {"bound", d.bound}, {"within_bound", d.is_within_bound()}};
}

ordered_json to_json(const PartTable& table, const PartRow& row, const std::optional<bench::RateFit>& fit) {
  ordered_json json{{"ranks", row.ranks},
                    {"hidden", row.hidden},
                    {"ffn", row.ffn},
                    {"weight_bytes", row.weight_bytes},
                    {"flop", row.costs.flop},
                    {"sent_bytes", row.sent_bytes},
                    {"compute_us", row.compute_us},
                    {"communication_us", row.communication_us},
                    {"together_us", row.together_us},
                    {"ratio", row.ratio()},
                    {"communication_share", row.communication_share()},
                    {"speed_up", row.speed_up},
                    {"rows_per_second_per_rank", rows_per_second_per_rank(table, row)}};
  if (table.largest) json["largest_batch"] = table.largest->by_ranks.at(row.ranks);
  if (!row.measured) {
    json["nodes"] = row.nodes;
    return json;
  }
  if (const auto ratio = model_ratio(table, row, fit)) json["model_ratio"] = *ratio;
  if (table.network) {
    json["hosts"] = row.nodes;
    json["crosses_hosts"] = row.nodes > 1;
  }
  if (const auto model = model_rows_per_second_per_rank(table, row, fit))
    json["model_rows_per_second_per_rank"] = *model;
  json["measurement"] = to_json(*row.measured);
  if (row.measured->difference) json["difference"] = to_json(*row.measured->difference);
  return json;
}

ordered_json to_json(const std::optional<bench::RateFit>& fit) {
  if (!fit) return nullptr;
  return {{"flop_per_second", fit->flop_per_second},
          {"bytes_per_second", fit->bytes_per_second},
          {"held_out_errors", fit->held_out_errors}};
}

}  // namespace

std::string to_text(const PartTable& table) {
  const std::string largest = table.largest ? table.largest->note() : "";
  if (table.machine)
    return fmt::format("{}, {}: {}, {}\n", table.command, kByModel, *table.machine, table.subject) +
           modeled_text(table) + largest;
  return fmt::format("{}: {}, {}{}; medians on the slowest rank\n", table.command, table.subject,
                     base::cpu_name(), table.network ? ", " + to_text(*table.network) : "") +
         measured_text(table) + fit_text(table.fit()) + largest;
}

std::string to_json(const PartTable& table) {
  ordered_json json{{"command", table.command}, {"measured", !table.machine}};
  if (table.machine) {
    json["machine"] = *table.machine;
    json["note"] = kByModel;
  } else {
    json["cpu"] = base::cpu_name();
  }
  const auto fit = table.fit();
  json["dtype"] = table.shape.dtype == at::kFloat ? "fp32" : "bf16";
  json["seq_len"] = table.shape.seq_len;
  json["batch_size"] = table.shape.batch_size;
  json["backward"] = table.shape.passes == plan::PassesOf::forward_and_backward;
  json["sequence_parallel"] = table.shape.is_sequence_parallel;
  if (table.network) json["emulated_hosts"] = to_json(*table.network);
  if (table.largest) json["memory_cap_bytes"] = table.largest->cap_bytes;
  json["rows"] = ordered_json::array();
  for (const PartRow& row : table.rows) json["rows"].push_back(to_json(table, row, fit));
  if (!table.machine) json["fit"] = to_json(fit);
  return json_line(json);
}

}  // namespace shardwise::cli
