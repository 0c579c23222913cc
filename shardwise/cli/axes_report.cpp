#include "shardwise/cli/axes_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/cli/train_report.h"
#include "shardwise/cli/train_workload.h"
#include "shardwise/cli/units.h"
#include "shardwise/plan/communication.h"

namespace shardwise::cli {
namespace {

enum Axis : size_t { kPipeline, kData, kTensor };  // in train::kAxes

bool is_used(const train::AxisUsage& usage) {
  return usage.comm_ns > 0 || usage.comm_bytes > 0;
}

/// Adds a sum over several axes to the axis that has the same ranks, if one has.
void add_(int64_t bytes, const std::array<int64_t, train::kAxes.size()>& sizes, SentBytes& sent) {
  sent.all += bytes;
  const auto is_split = [](int64_t size) { return size > 1; };
  if (std::ranges::count_if(sizes, is_split) == 1)
    sent.axes[size_t(std::ranges::find_if(sizes, is_split) - sizes.begin())] += bytes;
}

}  // namespace

SentBytes planned_bytes(const train::Job& job, const comm::Mesh& mesh, int rank) {
  const train::TrainOptions& o = job.options();
  const plan::Workload workload = workload_of(job, mesh, mesh.coordinate(train::kPipelineAxis, rank));
  const int replica = mesh.coordinate(train::kDataAxis, rank);
  const int part = mesh.coordinate(train::kTensorAxis, rank);
  const int64_t micro_batches = train::micro_batches_of(o, replica).size();
  const auto bytes_of = [](const plan::Collectives& collectives) { return collectives.total().bytes; };
  const int64_t loss = bytes_of(plan::loss_communication(workload, replica)),
                norm = bytes_of(plan::norm_communication(workload, part, replica));
  SentBytes sent;
  sent.axes[kPipeline] = plan::stage_messages(workload, part, micro_batches).sent.bytes;
  sent.axes[kData] =
      bytes_of(plan::replica_communication(workload, part, replica, train::most_micro_batches(o))) - loss;
  sent.axes[kTensor] = bytes_of(micro_batches * plan::micro_batch_communication(workload, part).both()) +
                       bytes_of(plan::optimizer_communication(workload, part, replica, micro_batches)) - norm;
  for (const int64_t bytes : sent.axes) sent.all += bytes;
  add_(loss, {o.pp, o.dp, 1}, sent);
  add_(norm, {o.pp, o.dp, o.tp}, sent);
  return sent;
}

std::optional<double> idle_fraction(const train::TrainOptions& o) {
  if (o.pp == 1) return std::nullopt;
  const auto idle = static_cast<double>(o.pp - 1);
  return idle / (static_cast<double>(o.virtual_stages * train::most_micro_batches(o)) + idle);
}

nlohmann::ordered_json axes_json(const train::Usage& measured, const SentBytes& planned) {
  nlohmann::ordered_json json;
  for (size_t axis = 0; axis < train::kAxes.size(); ++axis) {
    const train::AxisUsage& usage = measured.axes[axis];
    if (!is_used(usage)) continue;
    nlohmann::ordered_json& of_axis = json[train::kAxes[axis]] = {{"comm_ms", milliseconds(usage.comm_ns)}};
    if (usage.wait_ns) of_axis["wait_ms"] = milliseconds(*usage.wait_ns);
    of_axis["comm_bytes"] = usage.comm_bytes;
    of_axis["expected_comm_bytes"] = planned.axes[axis];
  }
  return json;
}

std::string axes_table(const TrainReport& report) {
  const train::Usage usage = report.summary.last.largest_usage();
  if (std::ranges::count_if(usage.axes, is_used) < 2 && !is_used(usage.axes[kPipeline])) return "";
  std::string table = "\naxis  sent per step      planned  communication      waiting";
  for (size_t axis = 0; axis < train::kAxes.size(); ++axis) {
    const train::AxisUsage& of_axis = usage.axes[axis];
    if (!is_used(of_axis)) continue;
    int64_t planned = 0;
    for (const RankReport& rank : report.ranks) planned = std::max(planned, rank.expected.sent.axes[axis]);
    table += fmt::format("\n{:<4}{:>15}{:>13}{:>12.1f} ms{:>13}", train::kAxes[axis],
                         in_megabytes(of_axis.comm_bytes, 3), in_megabytes(planned, 3),
                         milliseconds(of_axis.comm_ns),
                         of_axis.wait_ns ? fmt::format("{:.1f} ms", milliseconds(*of_axis.wait_ns)) : "-");
  }
  if (report.idle_fraction)
    table +=
        fmt::format("\npipeline stages are idle for at least {:.1f} % of a step, by (p - 1) / (vm + p - 1)",
                    100 * *report.idle_fraction);
  return table;
}

}  // namespace shardwise::cli
