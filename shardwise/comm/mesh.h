// Named axes over the ranks of a job: which ranks form the tp group, the dp group, and so on.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shardwise/comm/group.h"

namespace shardwise::comm {

/// Ranks are numbered with the last axis fastest, so {"dp", "tp"} keeps tp groups contiguous: 16 ranks with
/// tp=4 are 0–3, 4–7, 8–11, 12–15.
class Mesh {
 public:
  struct Axis {
    std::string name;
    int size;
  };
  /// Makes the group of the given ranks (ascending, this rank among them); called once per axis, when first
  /// needed.
  using Connect = std::function<Group(const std::string& axis, const std::vector<int>& ranks)>;

  /// Errors: c10::ValueError when an axis is below 1, named twice, or the sizes' product is not `world_size`.
  Mesh(std::vector<Axis> axes, int rank, int world_size, Connect connect);

  int size(const std::string& axis) const;
  /// This rank's place along the axis.
  int coordinate(const std::string& axis) const;
  /// The ranks that share all of this rank's other coordinates, ascending.
  std::vector<int> ranks(const std::string& axis) const;
  /// Collective over those ranks on first use; cached.
  Group group(const std::string& axis);

 private:
  int axis_index(const std::string& axis) const;
  int stride(const std::string& axis) const;  // between neighbors along the axis
  std::vector<Axis> axes_;
  int rank_;
  Connect connect_;
  std::map<std::string, Group> groups_;
};

}  // namespace shardwise::comm
