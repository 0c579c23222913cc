// A device mesh: named axes over the ranks of a job, which define the tp groups, the dp groups, and so on.
#pragma once
#include <functional>
#include <map>
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
  };
  /// Connects the group of the given ranks (ascending, including this rank); the mesh calls it once per axis,
  /// on first use.
  using Connect = std::function<Group(const std::string& axis, const std::vector<int>& ranks)>;

  /// Errors: c10::ValueError if an axis is below 1 or named twice, or the sizes' product is not `world_size`.
  Mesh(std::vector<Axis> axes, int rank, int world_size, Connect connect);

  /// Returns the number of ranks along the axis.
  int size(const std::string& axis) const;
  /// Returns this rank's index along the axis.
  int coordinate(const std::string& axis) const;
  /// Returns the ranks whose other coordinates equal this rank's, ascending.
  std::vector<int> ranks(const std::string& axis) const;
  /// Returns the group of `ranks(axis)`. Collective over them on first use; cached afterward.
  Group group(const std::string& axis);

 private:
  int axis_index(const std::string& axis) const;
  int stride(const std::string& axis) const;  // in ranks, between neighbors along the axis
  std::vector<Axis> axes_;
  int rank_;
  Connect connect_;
  std::map<std::string, Group> groups_;
};

}  // namespace shardwise::comm
