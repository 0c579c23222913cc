#include "shardwise/plan/collective_time.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

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
    : algorithm_(machine.algorithm),
      ranks_(group.ranks),
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
  processor_share_ = link.processor_share.value;
  if (!crosses) {
    if (machine.collectives && machine.collectives->ranks == ranks_) measured_ = machine.collectives;
    return;
  }
  const double ports = static_cast<double>(ranks_in_node_), across = ports * reached(link);
  bytes_per_second_ = ports > 1 ? std::min(bytes_per_second_, across) : across;
}

double CollectiveTime::all_gather(double bytes) const {
  return measured_ ? measured_->all_gather.seconds(bytes) : half(bytes);
}

double CollectiveTime::reduce_scatter(double bytes) const {
  return measured_ ? measured_->reduce_scatter.seconds(bytes) : half(bytes);
}

double CollectiveTime::all_reduce(double bytes) const {
  if (measured_) return measured_->all_reduce.seconds(bytes);
  if (ranks_ == 1) return 0;
  if (algorithm_ == Algorithm::tree) return tree(bytes);
  return algorithm_ == Algorithm::two_shot ? two_shot(bytes, 2) : ring(bytes, 2);
}

double CollectiveTime::all_to_all(double bytes) const {
  if (ranks_ == 1) return 0;
  return seconds_per_call_ + static_cast<double>(ranks_ - 1) * seconds_per_hop_ + to_all_others(bytes);
}

double CollectiveTime::send(double bytes) const {
  return ranks_ == 1 ? 0 : seconds_per_call_ + bytes / bytes_per_second_;
}

/// Half an all_reduce, which no tree computes.
double CollectiveTime::half(double bytes) const {
  if (ranks_ == 1) return 0;
  return algorithm_ == Algorithm::two_shot ? two_shot(bytes, 1) : ring(bytes, 1);
}

double CollectiveTime::ring(double bytes, int halves) const {
  return seconds_per_call_ + halves * static_cast<double>(ranks_ - 1) * seconds_per_hop_ +
         bytes / bytes_per_second_;
}

double CollectiveTime::two_shot(double bytes, int halves) const {
  return seconds_per_call_ + halves * seconds_per_hop_ + to_all_others(bytes);
}

/// Each half of the elements goes up and down one of two trees, in which a rank is once a leaf: it sends all
/// elements twice, a ring (t − 1) / t of that.
double CollectiveTime::tree(double bytes) const {
  const auto ranks = static_cast<double>(ranks_);
  return seconds_per_call_ + 2 * std::ceil(std::log2(ranks)) * seconds_per_hop_ +
         bytes * ranks / (ranks - 1) / bytes_per_second_;
}

/// As much to each other rank, all at once: within a node over its link, to others over a rank's own port.
double CollectiveTime::to_all_others(double bytes) const {
  const double within = bytes * static_cast<double>(ranks_in_node_ - 1) / static_cast<double>(ranks_ - 1);
  return std::max(within / within_bytes_per_second_, (bytes - within) / across_bytes_per_second_);
}

double CollectiveTime::of(const Collectives& collectives) const {
  return of_calls(collectives.all_reduce, [&](double bytes) { return all_reduce(bytes); }) +
         of_calls(collectives.all_gather, [&](double bytes) { return all_gather(bytes); }) +
         of_calls(collectives.reduce_scatter, [&](double bytes) { return reduce_scatter(bytes); }) +
         of_calls(collectives.broadcast, [&](double bytes) { return send(bytes); });
}

}  // namespace shardwise::plan
