// The table and the JSON document of `shardwise profile step`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/profile.h"
#include "shardwise/cli/profile_step.h"
#include "shardwise/cli/table.h"
#include "shardwise/cli/units.h"

namespace shardwise::cli {
namespace {

using nlohmann::ordered_json;

std::string in_ms(double ms, double whole) {
  return fmt::format("{:.3f} ({:.0f} %)", ms, 100 * ms / whole);
}

/// The cells after the number of ranks; those of waiting and other time if the rows are measured.
Row cells_of(const StepTable& t, const StepRow& row) {
  const bench::StepParts& p = row.parts;
  const double whole = p.total(), tokens = t.options.tokens();
  Row cells{fmt::format("{:.3f}", row.step_ms)};
  if (row.measured) {
    const bench::Spread& raw = row.measured->step.raw;
    cells.push_back(fmt::format("{:.3f}-{:.3f}", raw.lower_quartile_us / 1e3, raw.upper_quartile_us / 1e3));
  }
  cells.push_back(in_ms(p.compute, whole));
  cells.push_back(in_ms(p.communication, whole));
  if (row.measured) cells.push_back(in_ms(p.waiting, whole));
  cells.push_back(in_ms(p.optimizer, whole));
  if (row.measured) cells.push_back(in_ms(p.other, whole));
  cells.push_back(fmt::format("{:.0f}", tokens / row.step_ms * 1e3));
  cells.push_back(fmt::format("{:.0f}", row.tokens_per_second_per_rank(tokens, row.step_ms)));
  cells.push_back(fmt::format("{:.2f}x", t.rows.front().step_ms / row.step_ms));
  cells.push_back(fmt::format("{:.2f}", megabytes(row.weight_bytes)));
  if (t.largest) cells.push_back(t.largest->text(row.ranks));
  return cells;
}

std::string subject_of(const StepProfileOptions& o) {
  return fmt::format("{}, {} x {} tokens, {}{}", o.model, o.batch_size, o.seq_len, o.dtype,
                     o.sequence_parallel ? ", sequence parallelism" : "");
}

std::string modeled_text(const StepTable& t) {
  std::vector<Row> rows{{"ranks", "nodes", "step ms", "compute ms", "communication ms", "optimizer ms",
                         "tokens/s", "tokens/s per rank", "speed-up", "weights MB per rank"}};
  if (t.largest) rows[0].emplace_back("largest batch");
  for (const StepRow& step : t.rows) {
    Row cells = cells_of(t, step);
    cells.insert(cells.begin(), {std::to_string(step.ranks), std::to_string(step.nodes)});
    rows.push_back(cells);
  }
  return fmt::format("{}, {}: {}, {}\n", kProfileStep, kByModel, *t.machine, subject_of(t.options)) +
         table(rows);
}

/// Adds what only some measurements have.
void append_measured(const StepTable& t, const StepRow& step, Row& cells) {
  if (t.is_any_oversubscribed())
    cells.emplace_back(step.measured->is_oversubscribed ? "oversubscribed" : "own");
  if (!t.network) return;
  cells.push_back(step.model_ms ? fmt::format("{:.0f}", step.tokens_per_second_per_rank(t.options.tokens(),
                                                                                        *step.model_ms))
                                : "-");
  cells.push_back(hosts_text(*t.network, step.ranks));
}

std::string measured_text(const StepTable& t) {
  std::vector<Row> rows{{"ranks", "step ms", "quartiles", "compute ms", "communication ms", "waiting ms",
                         "optimizer ms", "other ms", "tokens/s", "tokens/s per rank", "speed-up",
                         "weights MB per rank"}};
  if (t.largest) rows[0].emplace_back("largest batch");
  if (t.is_any_oversubscribed()) rows[0].emplace_back("cores");
  if (t.network) rows[0].insert(rows[0].end(), {"model tokens/s per rank", "hosts"});
  for (const StepRow& step : t.rows) {
    Row cells = cells_of(t, step);
    cells.insert(cells.begin(), std::to_string(step.ranks));
    append_measured(t, step, cells);
    rows.push_back(cells);
  }
  return fmt::format("{}: {}, {}{}; the median step of the slowest rank, and the parts of recorded steps\n",
                     kProfileStep, subject_of(t.options), base::cpu_name(),
                     t.network ? ", " + to_text(*t.network) : "") +
         table(rows);
}

ordered_json to_json(const StepTable& t, const StepRow& row) {
  const bench::StepParts& p = row.parts;
  const double tokens = t.options.tokens();
  ordered_json json{
      {"ranks", row.ranks},
      {"step_ms", row.step_ms},
      {"tokens_per_second", tokens / row.step_ms * 1e3},
      {"tokens_per_second_per_rank", row.tokens_per_second_per_rank(tokens, row.step_ms)},
      {"speed_up", t.rows.front().step_ms / row.step_ms},
      {"weight_bytes", row.weight_bytes},
      {"parts_ms", {{"compute", p.compute}, {"communication", p.communication}, {"optimizer", p.optimizer}}}};
  if (t.largest) json["largest_batch"] = t.largest->by_ranks.at(row.ranks);
  if (!row.measured) {
    json["nodes"] = row.nodes;
    return json;
  }
  json["parts_ms"]["waiting"] = p.waiting;
  json["parts_ms"]["other"] = p.other;
  json["oversubscribed"] = row.measured->is_oversubscribed;
  json["repetitions"] = row.measured->step.repetitions;
  json["step"] = bench::to_json(row.measured->step.raw);
  if (!t.network) return json;
  json["hosts"] = row.nodes;
  json["crosses_hosts"] = row.nodes > 1;
  if (row.model_ms)
    json["model_tokens_per_second_per_rank"] = row.tokens_per_second_per_rank(tokens, *row.model_ms);
  return json;
}

}  // namespace

std::string to_text(const StepTable& t) {
  return (t.machine ? modeled_text(t) : measured_text(t)) + (t.largest ? t.largest->note() : "");
}

std::string to_json(const StepTable& t) {
  const StepProfileOptions& o = t.options;
  ordered_json json{{"command", kProfileStep}, {"measured", !t.machine}};
  if (t.machine) {
    json["machine"] = *t.machine;
    json["note"] = kByModel;
  } else {
    json["cpu"] = base::cpu_name();
  }
  json["model"] = o.model;
  json["dtype"] = o.dtype;
  json["seq_len"] = o.seq_len;
  json["batch_size"] = o.batch_size;
  json["sequence_parallel"] = o.sequence_parallel;
  if (t.network) json["emulated_hosts"] = to_json(*t.network);
  if (t.largest) json["memory_cap_bytes"] = t.largest->cap_bytes;
  json["rows"] = ordered_json::array();
  for (const StepRow& step : t.rows) json["rows"].push_back(to_json(t, step));
  return json_line(json);
}

}  // namespace shardwise::cli
