// A device mesh: named axes over the ranks of a job, which define the tp groups, the dp groups, and so on.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/comm/group.h"

namespace shardwise::comm {

/// A mesh of ranks, numbered in row-major order: the last axis is contiguous. With {"dp", "tp"} the tp groups
/// of 16 ranks with tp=4 are 0–3, 4–7, 8–11, 12–15.
class Mesh {
 public:
  /// A named axis and its number of ranks.
  struct Axis {
    std::string name;  // such as "tp"
    int size;          // at least 1
    bool operator==(const Axis&) const = default;
  };
  /// From the outermost to the innermost.
  using Axes = std::vector<Axis>;
  /// The names of axes, in the order of the mesh: its group spans them all.
  using Names = std::vector<std::string>;
  /// Connects the group of the given ranks (ascending, including this rank), named after its axes, as
  /// "dp+cp".
  using Connect = std::function<Group(const std::string& name, const std::vector<int>& ranks)>;

  /// Connects the group of each axis, in the order of the mesh, and then those of `combined`. All ranks make
  /// their groups in this one order, so that none waits for another. Groups of the same ranks are one group,
  /// connected once. Errors: c10::ValueError if an axis is below 1 or named twice, the sizes' product is not
  /// `world_size`, or `combined` has other names or another order; those of `connect`.
  Mesh(Axes axes, int rank, int world_size, const Connect& connect, const std::vector<Names>& combined = {});

  /// Returns another mesh of the same ranks. Groups that this one has are not connected again.
  /// Errors: as the constructor's.
  Mesh view(Axes axes, const Connect& connect, const std::vector<Names>& combined = {}) const;

  /// Returns the axes, in their order.
  const Axes& axes() const { return axes_; }
  /// Returns this rank's number in the job.
  int rank() const { return rank_; }
  /// Returns the number of ranks of the job.
  int world_size() const;
  /// Returns the number of ranks along the axis. Errors: c10::ValueError if there is no such axis.
  int size(const std::string& axis) const;
  /// Returns this rank's index along the axis.
  int coordinate(const std::string& axis) const { return coordinate(axis, rank_); }
  /// Returns the index of `rank` along the axis.
  int coordinate(const std::string& axis, int rank) const;
  /// Returns the ranks whose coordinates along all other axes equal this rank's, ascending.
  std::vector<int> ranks(const std::string& axis) const { return ranks(Names{axis}); }
  /// Returns the ranks whose coordinates along all other axes than these equal this rank's, ascending.
  std::vector<int> ranks(const Names& axes) const;
  /// Returns the group of `ranks(axis)`.
  const Group& group(const std::string& axis) const { return group(Names{axis}); }
  /// Returns the group of combined axes. Errors: c10::ValueError if it was not made.
  const Group& group(const Names& axes) const;
  /// Returns every group of this mesh and its views once.
  std::vector<Group> groups() const;
  /// Returns the largest bytes of tensors that this rank has had in the symmetric heaps of all groups, summed
  /// over the heaps; 0 on a rank alone; nullopt if a group has none, as over MPI.
  std::optional<int64_t> symmetric_heaps_peak() const;

 private:
  using Groups = std::map<std::vector<int>, Group>;  // by their ranks
  Mesh(Axes axes, int rank, int world_size, const Connect& connect, const std::vector<Names>& combined,
       std::shared_ptr<Groups> groups);
  int axis_index(const std::string& axis) const;
  int stride(const std::string& axis) const;  // in ranks, between neighbors along the axis
  void connect_groups(const Connect& connect, const std::vector<Names>& combined);

  Axes axes_;
  int rank_;
  std::shared_ptr<Groups> groups_;  // of this mesh and its views
};

}  // namespace shardwise::comm
