#include "shardwise/cli/timeline.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "shardwise/base/json.h"
#include "shardwise/bench/step_profile.h"

namespace shardwise::cli {

using base::Fields;
using nlohmann::json;

namespace {

// Starts and durations in the file are rounded.
constexpr double kRoundingUs = 1e-3;

double microseconds_in(const Fields& fields, const char* name) {
  const double us = fields.number(name);
  if (us < 0) base::throw_invalid(fields.label(name), "a number from 0", json(us));
  return us;
}

std::string text_in(const Fields& fields, const char* name) {
  const json& value = fields.at(name);
  if (!value.is_string()) base::throw_invalid(fields.label(name), "a string", value);
  return value.get<std::string>();
}

TimelineOp op_of(const Fields& event, const std::string& where) {
  const Fields arguments(event.at("args"), where + "args.");
  return {.op = text_in(event, "name"),
          .layer = text_in(event, "cat"),
          .start_us = microseconds_in(event, "ts"),
          .duration_us = microseconds_in(event, "dur"),
          .waiting_us = microseconds_in(arguments, "waiting_us")};
}

/// Returns each rank's ops in the order of the file, that in which they began.
std::map<int64_t, TimelineRank> ops_by_rank(const json& events, const std::string& path) {
  std::map<int64_t, TimelineRank> ranks;
  const std::string where = path + ": traceEvents.";
  for (const json& object : events) {
    const Fields event(object, where);
    if (text_in(event, "ph") == "X") ranks[event.integer("pid")].push_back(op_of(event, where));
  }
  return ranks;
}

/// Returns the last of the outermost ops with those within, whose depths it sets.
TimelineRank last_of(const TimelineRank& ops) {
  TimelineRank last;
  std::vector<size_t> open;  // indices in `last`, outermost first
  for (const TimelineOp& op : ops) {
    const auto is_over = [&](size_t index) {
      return last[index].start_us + last[index].duration_us < op.start_us + kRoundingUs;
    };
    while (!open.empty() && is_over(open.back())) open.pop_back();
    if (open.empty()) last.clear();
    if (!open.empty()) last[open.back()].nested_us += op.duration_us;
    open.push_back(last.size());
    last.push_back(op);
    last.back().depth = static_cast<int>(open.size()) - 1;
  }
  return last;
}

void start_at_zero_(std::vector<TimelineRank>& ranks) {
  double start_us = ranks[0][0].start_us;
  for (const TimelineRank& rank : ranks) start_us = std::min(start_us, rank[0].start_us);
  for (TimelineRank& rank : ranks)
    for (TimelineOp& op : rank) op.start_us -= start_us;
}

}  // namespace

bool TimelineOp::is_collective() const {
  return bench::is_collective(op);
}

TimelineParts parts_of(const TimelineRank& rank) {
  TimelineParts parts;
  for (const TimelineOp& op : rank) {
    double& part = op.depth == 0        ? parts.host_us
                   : op.is_collective() ? parts.communicating_us
                                        : parts.computing_us;
    part += op.own_us();
    parts.waiting_us += op.waiting_us;
  }
  return parts;
}

std::vector<TimelineRank> read_timeline(const std::string& path) {
  const json trace = base::read_json(path);
  const bool is_trace = trace.is_object() && trace.contains("traceEvents") && trace["traceEvents"].is_array();
  const auto ops = is_trace ? ops_by_rank(trace["traceEvents"], path) : std::map<int64_t, TimelineRank>();
  TORCH_CHECK_VALUE(!ops.empty(),
                    "report: --profile must be a trace that --profile of another command wrote; got ", path,
                    " [SW0821]");
  std::vector<TimelineRank> ranks;
  for (const auto& [rank, of_rank] : ops) ranks.push_back(last_of(of_rank));
  start_at_zero_(ranks);
  return ranks;
}

}  // namespace shardwise::cli
