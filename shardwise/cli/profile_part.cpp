#include "shardwise/cli/profile_part.h"

#include "shardwise/plan/collective_time.h"

namespace shardwise::cli {
namespace {

PartRow row_of(const bench::PartShape& shape, const bench::PartMeasured& m) {
  return {.ranks = m.ranks,
          .hidden = shape.config.hidden_size,
          .ffn = shape.config.intermediate_size,
          .costs = m.costs,
          .weight_bytes = m.weight_bytes,
          .sent_bytes = m.sent_bytes,
          .compute_us = m.compute.raw.median_us,
          .communication_us = m.communication.raw.median_us,
          .together_us = m.together.raw.median_us,
          .speed_up = 1,
          .measured = m};
}

PartRow row_of(const bench::PartShape& shape, int64_t ranks, const plan::Machine& machine) {
  const plan::PartWorkload part = bench::workload_of(shape, ranks, machine.shares_memory);
  const plan::PartCosts costs = plan::part_costs(part);
  const plan::PartTime time = plan::part_time(part, machine);
  const plan::RankGroup group{.ranks = ranks};
  const int64_t in_node = group.ranks_in_node(machine);
  return {.ranks = ranks,
          .hidden = shape.config.hidden_size,
          .ffn = shape.config.intermediate_size,
          .costs = costs,
          .weight_bytes = costs.weight_elements * part.workload.element_bytes,
          .sent_bytes = costs.collectives.total().bytes,
          .compute_us = time.compute * 1e6,
          .communication_us = time.communication * 1e6,
          .together_us = time.total() * 1e6,
          .speed_up = 1,
          .nodes = (ranks + in_node - 1) / in_node};
}

void set_speed_ups_(std::vector<PartRow>& rows) {
  for (PartRow& row : rows) row.speed_up = rows.front().together_us / row.together_us;
}

}  // namespace

std::optional<bench::RateFit> PartTable::fit() const {
  std::vector<bench::RatioPoint> points;
  for (const PartRow& row : rows) {
    if (row.ranks == 1 || row.nodes > 1 || !row.measured || row.measured->is_oversubscribed) continue;
    points.push_back({row.costs, row.compute_us / 1e6, row.communication_us / 1e6});
  }
  return bench::fit_rates(points);
}

std::optional<double> PartTable::model_us(const PartRow& row,
                                          const std::optional<bench::RateFit>& fit) const {
  if (row.ranks == 1) return row.compute_us;
  std::optional<double> seconds;
  if (row.nodes > 1) {
    seconds = network_seconds(*network, row.ranks, row.costs.collectives,
                              static_cast<int64_t>(c10::elementSize(shape.dtype)));
  } else if (fit) {
    seconds = static_cast<double>(row.costs.collectives.total().bytes) / fit->bytes_per_second;
  }
  if (!seconds) return std::nullopt;
  return row.compute_us + *seconds * 1e6;
}

std::vector<PartRow> measured_rows(const bench::PartShape& shape,
                                   const std::vector<bench::PartMeasured>& measured,
                                   const std::optional<HostNetwork>& network) {
  std::vector<PartRow> rows;
  for (const bench::PartMeasured& one : measured) {
    rows.push_back(row_of(shape, one));
    if (network) rows.back().nodes = network->hosts_of(one.ranks);
  }
  set_speed_ups_(rows);
  return rows;
}

std::vector<PartRow> modeled_rows(const bench::PartShape& shape, const std::vector<int64_t>& ranks,
                                  const plan::Machine& machine) {
  std::vector<PartRow> rows;
  for (const int64_t count : ranks) rows.push_back(row_of(shape, count, machine));
  set_speed_ups_(rows);
  return rows;
}

}  // namespace shardwise::cli
