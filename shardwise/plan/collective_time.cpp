#include "shardwise/plan/collective_time.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::plan {
namespace {

double reached(const Link& link) {
  return link.bytes_per_second.value * link.efficiency.value;
}

/// Calls `seconds(bytes)` for the mean call and multiplies.
template <class Seconds>
double of_calls(const Traffic& traffic, const Seconds& seconds) {
  if (traffic.calls == 0) return 0;
  const auto calls = static_cast<double>(traffic.calls);
  return calls * seconds(static_cast<double>(traffic.bytes) / calls);
}

}  // namespace

int64_t RankGroup::ranks_in_node(const Machine& machine) const {
  return std::clamp<int64_t>(machine.devices_per_node / stride, 1, ranks);
}

bool RankGroup::crosses_nodes(const Machine& machine) const {
  return ranks_in_node(machine) < ranks;
}

CollectiveTime::CollectiveTime(const Machine& machine, const RankGroup& group)
    : ranks_(group.ranks),
      bytes_per_second_(reached(machine.within_node)),
      ranks_in_node_(group.ranks_in_node(machine)),
      within_bytes_per_second_(bytes_per_second_),
      across_bytes_per_second_(machine.across_nodes ? reached(*machine.across_nodes) : bytes_per_second_) {
  const bool crosses = group.crosses_nodes(machine);
  TORCH_CHECK_VALUE(!crosses || machine.across_nodes, "plan: machine ", machine.name, " is one node of ",
                    machine.devices_per_node, " devices; got a group of ", group.ranks, " [SW0766]");
  const Link& link = crosses ? *machine.across_nodes : machine.within_node;
  seconds_per_call_ = link.seconds_per_call.value;
  seconds_per_hop_ = link.seconds_per_hop.value;
  if (!crosses) {
    if (machine.collectives && machine.collectives->ranks == ranks_) measured_ = machine.collectives;
    return;
  }
  const double ports = static_cast<double>(ranks_in_node_), across = ports * reached(link);
  bytes_per_second_ = ports > 1 ? std::min(bytes_per_second_, across) : across;
}

double CollectiveTime::all_gather(double bytes) const {
  return measured_ ? measured_->all_gather.seconds(bytes) : ring(bytes, 1);
}

double CollectiveTime::reduce_scatter(double bytes) const {
  return measured_ ? measured_->reduce_scatter.seconds(bytes) : ring(bytes, 1);
}

double CollectiveTime::all_reduce(double bytes) const {
  return measured_ ? measured_->all_reduce.seconds(bytes) : ring(bytes, 2);
}

double CollectiveTime::all_to_all(double bytes) const {
  if (ranks_ == 1) return 0;
  const auto others = static_cast<double>(ranks_ - 1), in_node = static_cast<double>(ranks_in_node_ - 1);
  const double within = bytes * in_node / others, across = bytes - within;
  return seconds_per_call_ + others * seconds_per_hop_ +
         std::max(within / within_bytes_per_second_, across / across_bytes_per_second_);
}

double CollectiveTime::send(double bytes) const {
  return ranks_ == 1 ? 0 : seconds_per_call_ + bytes / bytes_per_second_;
}

double CollectiveTime::ring(double bytes, int halves) const {
  if (ranks_ == 1) return 0;
  return seconds_per_call_ + halves * static_cast<double>(ranks_ - 1) * seconds_per_hop_ +
         bytes / bytes_per_second_;
}

double CollectiveTime::of(const Collectives& collectives) const {
  return of_calls(collectives.all_reduce, [&](double bytes) { return all_reduce(bytes); }) +
         of_calls(collectives.all_gather, [&](double bytes) { return all_gather(bytes); }) +
         of_calls(collectives.reduce_scatter, [&](double bytes) { return reduce_scatter(bytes); });
}

}  // namespace shardwise::plan
