#include "shardwise/cli/train_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/cli/axes_report.h"
#include "shardwise/cli/load_json.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/stages_table.h"
#include "shardwise/cli/train_workload.h"
#include "shardwise/cli/units.h"
#include "shardwise/plan/parameters.h"

namespace shardwise::cli {

using train::Summary;

namespace {

/// Column heads of the table; `table_row` fills the columns, with "-" for what is not planned or counted.
constexpr const char* kTableHead =
    "\nrank  peak memory      planned  sent per step      planned  copied per step  communication";

std::string table_row(size_t rank, const RankReport& of_rank) {
  const auto& [usage, expected] = of_rank;
  return fmt::format("\n{:>4}{:>13}{:>13}{:>15}{:>13}{:>17}{:>10.1f} of {:.1f} ms", rank,
                     in_megabytes(usage.peak_memory_bytes, 2),
                     expected.peak ? in_megabytes(expected.peak->bytes(), 2) : "-",
                     in_megabytes(usage.comm_bytes, 3), in_megabytes(expected.sent.all, 3),
                     usage.copied_bytes ? in_megabytes(*usage.copied_bytes, 3) : "-",
                     milliseconds(usage.comm_ns), milliseconds(usage.step_ns));
}

nlohmann::ordered_json to_json(size_t rank, const RankReport& of_rank) {
  const auto& [usage, expected] = of_rank;
  nlohmann::ordered_json json{
      {"rank", rank}, {"peak_memory_bytes", usage.peak_memory_bytes}, {"comm_bytes", usage.comm_bytes}};
  if (usage.copied_bytes) json["copied_bytes"] = *usage.copied_bytes;
  json["comm_ms"] = milliseconds(usage.comm_ns);
  if (expected.peak) json["expected_peak_memory_bytes"] = expected.peak->bytes();
  json["expected_comm_bytes"] = expected.sent.all;
  if (const nlohmann::ordered_json axes = axes_json(usage, expected.sent); !axes.empty()) json["axes"] = axes;
  return json;
}

PlannedMemories planned_in(const TrainReport& report) {
  std::vector<plan::Peak> peaks;
  for (const RankReport& rank : report.ranks)
    if (rank.expected.peak) peaks.push_back(*rank.expected.peak);
  return planned_memory(peaks);
}

}  // namespace

std::string describe(const train::Job& job) {
  const train::TrainOptions& o = job.options();
  return fmt::format(
      "train: {:.2f}M parameters ({}), {}, {}{}tp {}{}, steps {} to {} of {} x {} "
      "tokens",
      static_cast<double>(config::parameter_count(job.config())) / 1e6, job.config().dtype,
      job.text().description(), o.pp > 1 ? fmt::format("pp {}, ", o.pp) : "",
      o.dp > 1 ? fmt::format("dp {}, ", o.dp) : "", o.tp,
      o.tp > 1 && o.sequence_parallel ? " with sequence parallelism" : "", job.first_step() + 1,
      o.last_step(), o.batch_size * o.grad_accum, int64_t(o.seq_len));
}

namespace {

/// Adds the parameters that each replica updates on a stage, each counted on every rank that holds it.
void add_updated(const plan::Workload& workload, std::vector<int64_t>& by_replica) {
  for (int part = 0; part < workload.tp; ++part) {
    for (const base::Split& owners : plan::owned_by_replicas(workload, part))
      for (int replica = 0; replica < workload.dp; ++replica)
        by_replica[size_t(replica)] +=
            workload.zero == plan::ZeroStage::none ? owners.size() : owners.range(replica).size();
  }
}

}  // namespace

std::string replicas_table(const train::Job& job, const comm::Mesh& mesh) {
  const train::TrainOptions& o = job.options();
  const plan::Workload workload = workload_of(job, mesh);
  std::vector<int64_t> updated(size_t(o.dp), 0);
  for (int stage = 0; stage < o.pp; ++stage) add_updated(workload_of(job, mesh, stage), updated);
  std::string table = "train: replica  ranks      micro-batches of each step  updates of its weights";
  for (int replica = 0; replica < o.dp; ++replica) {
    std::string ranks;
    for (int64_t first = replica * o.tp; first < o.ranks(); first += o.dp * o.tp)
      ranks += (ranks.empty() ? "" : ", ") + numbers_text({first, first + o.tp});
    table += fmt::format("\n{:>14}  {:<9}  {:<26}  {:.3f}M", replica, ranks,
                         numbers_text(train::micro_batches_of(o, replica)),
                         static_cast<double>(updated[size_t(replica)]) / 1e6);
  }
  if (workload.zero == plan::ZeroStage::weights)
    return table +
           "\neach replica keeps the weights that it updates, and gathers those of a block before use";
  if (workload.replicas_per_copy == 1) return table + "\neach replica has a copy of the weights";
  return table + (workload.replicas_per_copy == workload.dp
                      ? "\nall replicas read one copy of the weights"
                      : fmt::format("\nthe {} replicas of each host read one copy of the weights",
                                    workload.replicas_per_copy));
}

bool ranks_share_memory(const comm::Group& group) {
  return group.size() == 1 || group.has_symmetric_heap();
}

PlannedMemories planned_memory(const std::vector<plan::Peak>& peaks) {
  PlannedMemories by_rank;
  for (const plan::Peak& peak : peaks) by_rank.push_back({peak.private_bytes(), peak.symmetric_heap_bytes()});
  return by_rank;
}

std::string planned_memory_line(const PlannedMemories& planned) {
  return planned.empty() ? "train: peak memory is not planned for ranks over MPI or on several devices"
                         : "train: " + to_text(planned);
}

TrainReport make_report(const train::Job& job, Summary summary, StepTimes times, const comm::Mesh& mesh) {
  const std::vector<plan::Peak> peaks = planned_peaks(job, mesh);
  TrainReport report{std::move(summary), {}, std::move(times), idle_fraction(job.options())};
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    RankReport::Expected expected{planned_bytes(job, mesh, rank), std::nullopt};
    if (!peaks.empty()) expected.peak = peaks[size_t(rank)];
    report.ranks.push_back({report.summary.last.usage[rank], std::move(expected)});
  }
  return report;
}

std::string to_text(const TrainReport& report) {
  const auto& [last, steps, seconds, saved, inventory, load, profile] = report.summary;
  std::string text =
      fmt::format("{} steps in {}: loss {:.4f}", steps, base::format_duration(seconds), last.loss);
  if (last.val_loss) text += fmt::format(", validation {:.4f}", *last.val_loss);
  if (saved) text += "; saved " + saved->string();
  text += kTableHead;
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    text += table_row(rank, report.ranks[rank]);
  }
  return text + axes_table(report) + compared_text(report.times);
}

std::string to_json(const TrainReport& report) {
  const auto& [last, steps, seconds, saved, inventory, load, profile] = report.summary;
  nlohmann::ordered_json json;
  if (const PlannedMemories planned = planned_in(report); !planned.empty())
    json["expected_memory"] = to_json(planned);
  json.update({{"step", last.step},
               {"steps", steps},
               {"tokens", last.tokens},
               {"seconds", seconds},
               {"loss", last.loss}});
  json.update(to_json(report.times));
  if (last.val_loss) json["val_loss"] = *last.val_loss;
  if (saved) json["saved"] = saved->string();
  if (load) json["load"] = load_json(*load);
  if (report.idle_fraction) json["idle_fraction"] = *report.idle_fraction;
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    json["ranks"].push_back(to_json(rank, report.ranks[rank]));
    if (const auto& shared = inventory.ranks[rank].peak_symmetric_heap)
      json["ranks"].back()["peak_symmetric_heap_bytes"] = *shared;
  }
  return json_line(json);
}

}  // namespace shardwise::cli
