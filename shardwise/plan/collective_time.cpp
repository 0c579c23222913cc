#include "shardwise/plan/collective_time.h"

#include <algorithm>

namespace shardwise::plan {
namespace {

double reached(const Link& link) {
  return link.bytes_per_second.value * link.efficiency.value;
}

}  // namespace

int64_t RankGroup::ranks_in_node(const Machine& machine) const {
  return std::clamp<int64_t>(machine.devices_per_node / stride, 1, ranks);
}

bool RankGroup::crosses_nodes(const Machine& machine) const {
  return ranks_in_node(machine) < ranks;
}

CollectiveTime::CollectiveTime(const Machine& machine, const RankGroup& group)
    : ranks_(group.ranks), bytes_per_second_(reached(machine.within_node)) {
  const bool crosses = group.crosses_nodes(machine);
  const Link& link = crosses ? machine.across_nodes : machine.within_node;
  seconds_per_call_ = link.seconds_per_call.value;
  seconds_per_hop_ = link.seconds_per_hop.value;
  if (!crosses) return;
  const double ports = static_cast<double>(group.ranks_in_node(machine));
  const double across = ports * reached(machine.across_nodes);
  bytes_per_second_ = ports > 1 ? std::min(bytes_per_second_, across) : across;
}

double CollectiveTime::send(double bytes) const {
  return ranks_ == 1 ? 0 : seconds_per_call_ + bytes / bytes_per_second_;
}

double CollectiveTime::seconds(double bytes, int halves) const {
  if (ranks_ == 1) return 0;
  return seconds_per_call_ + halves * static_cast<double>(ranks_ - 1) * seconds_per_hop_ +
         bytes / bytes_per_second_;
}

double CollectiveTime::of(const Traffic& traffic, int halves) const {
  if (traffic.calls == 0) return 0;
  const auto calls = static_cast<double>(traffic.calls);
  return calls * seconds(static_cast<double>(traffic.bytes) / calls, halves);
}

double CollectiveTime::of(const Collectives& collectives) const {
  return of(collectives.all_reduce, 2) + of(collectives.all_gather, 1) + of(collectives.reduce_scatter, 1);
}

}  // namespace shardwise::plan
