// The weights of a model in one tensor, of which each data-parallel rank updates the rows that it owns.
#pragma once
#include "shardwise/parallel/host_groups.h"
#include "shardwise/parallel/owned_rows.h"

namespace shardwise::parallel {

/// The weights of a rank in one tensor: the trained ones in the order of the parameters and without gaps,
/// then the frozen ones.
class FlatWeights {
 public:
  /// Makes the value of every parameter a part of one tensor; the values are lost. If `is_shared` it is one
  /// memory on all ranks of the data-parallel `group` (comm::Group::empty_shared; collective), else in the
  /// symmetric heap of the group if it has one. The ranks must hold the same shards.
  /// Errors: c10::ValueError if the parameters have different dtypes.
  FlatWeights(const ParamSpecs& specs, const comm::Group& group, bool is_shared);

  /// Gathers the rows that their owners have updated. Collective. Cost: one all_gather, in place,
  /// for each part of which it has elements.
  void all_gather_(const OwnedRows& owned);
  /// As all_gather_, for ranks that share one copy on each host: sends every row once to each of the other
  /// hosts. Peers of this host may read the rows only after a barrier. Collective over `hosts.across`. Cost:
  /// for each part one broadcast from each host, in place.
  void broadcast_(const OwnedRows& owned, const HostGroups& hosts) const;

 private:
  comm::Group group_;
  at::Tensor trained_;  // [elements] of the trained ones
};

}  // namespace shardwise::parallel
