#include "shardwise/cli/runs_page.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "shardwise/cli/output.h"
#include "shardwise/cli/planned_step.h"
#include "shardwise/cli/report_page.h"  // generated from report_page/ (cmake/report_page.cmake)
#include "shardwise/cli/run_summary.h"

namespace shardwise::cli {

using Json = nlohmann::ordered_json;

namespace {

template <class T>
Json value_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

/// Steps as columns, without the times of each rank.
Json steps_json(const std::vector<RunStep>& steps) {
  Json json{
      {"step", Json::array()}, {"loss", Json::array()}, {"ms", Json::array()}, {"validation", Json::array()}};
  for (const RunStep& step : steps) {
    json["step"].push_back(step.step);
    json["loss"].push_back(step.loss);
    json["ms"].push_back(step.slowest_ms());
    if (step.val_loss) json["validation"].push_back({step.step, *step.val_loss});
  }
  return json;
}

Json ranks_json(const RunFile& run) {
  const std::vector<StepMeans> means = means_by_rank(run);
  Json ranks = Json::array();
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    const RunRank& rank = run.ranks[i];
    ranks.push_back({{"step_ms", means[i].step_ms},
                     {"computing_ms", means[i].computing_ms()},
                     {"communicating_ms", means[i].communicating_ms()},
                     {"waiting_ms", value_or_null(means[i].wait_ms)},
                     {"sent_bytes", rank.comm_bytes},
                     {"planned_sent_bytes", rank.expected_comm_bytes},
                     {"copied_bytes", value_or_null(rank.copied_bytes)},
                     {"memory", rank.memory},
                     {"planned_memory", value_or_null(rank.expected_memory)}});
  }
  return ranks;
}

Json shapes_json(const RunFile& run) {
  Json rows = Json::array();
  for (const ShapeRow& row : shape_rows(run.shapes))
    rows.push_back({{"name", row.name},
                    {"parameters", row.parameters},
                    {"shape", row.shape},
                    {"rank_shapes", row.by_rank}});
  return rows;
}

Json run_json(const RunFile& run) {
  Json planned;
  if (run.planned)
    planned = {{"computing_ms", run.planned->compute}, {"communicating_ms", run.planned->communication}};
  return {{"name", run.name},
          {"description", run.description},
          {"parameters", run.parameters},
          {"ranks_text", ranks_text(run)},
          {"tokens_per_second", tokens_per_second(run)},
          {"measured_ms", value_or_null(run.measured_ms)},
          {"planned", planned},
          {"steps", steps_json(run.steps)},
          {"ranks", ranks_json(run)},
          {"shapes", shapes_json(run)}};
}

Json differences_json(const std::vector<RunFile>& runs) {
  Json differences = Json::array();
  for (size_t i = 1; i < runs.size(); ++i) {
    const LossDifference found = loss_difference(runs[0], runs[i]);
    differences.push_back(
        {{"name", runs[i].name}, {"steps", found.steps}, {"equal", found.equal}, {"largest", found.largest}});
  }
  return differences;
}

/// Ops as lists of op, layer, start, duration, waiting (µs), depth, and whether it is a collective.
Json timeline_json(const std::vector<TimelineRank>& timeline) {
  Json ranks = Json::array();
  for (const TimelineRank& rank : timeline) {
    const TimelineParts parts = parts_of(rank);
    Json ops = Json::array();
    for (const TimelineOp& op : rank)
      ops.push_back(
          {op.op, op.layer, op.start_us, op.duration_us, op.waiting_us, op.depth, op.is_collective()});
    ranks.push_back({{"computing_us", parts.computing_us},
                     {"communicating_us", parts.communicating_us},
                     {"waiting_us", parts.waiting_us},
                     {"host_us", parts.host_us},
                     {"ops", ops}});
  }
  return ranks;
}

Json page_json(const std::vector<RunFile>& runs, const std::vector<TimelineRank>& timeline) {
  Json json{{"memory_classes", kMemoryClasses}, {"first_steps", kFirstSteps}, {"runs", Json::array()}};
  for (const RunFile& run : runs) json["runs"].push_back(run_json(run));
  json["differences"] = differences_json(runs);
  json["timeline"] = timeline_json(timeline);
  return json;
}

/// Returns `page` with its only `mark` replaced.
std::string replaced(const std::string& page, const std::string& mark, const std::string& text) {
  const size_t at = page.find(mark);
  TORCH_INTERNAL_ASSERT(at != std::string::npos, mark);
  return page.substr(0, at) + text + page.substr(at + mark.size());
}

}  // namespace

std::string page_of(const std::vector<RunFile>& runs, const std::vector<TimelineRank>& timeline) {
  return replaced(kReportPage, "{{data}}", in_script(json_line(page_json(runs, timeline))));
}

}  // namespace shardwise::cli
