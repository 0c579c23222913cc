#include "shardwise/comm/mesh.h"

#include <c10/util/Exception.h>

namespace shardwise::comm {

Mesh::Mesh(std::vector<Axis> axes, int rank, int world_size, Connect connect)
    : axes_(std::move(axes)), rank_(rank), connect_(std::move(connect)) {
  int64_t product = 1;
  for (size_t i = 0; i < axes_.size(); ++i) {
    TORCH_CHECK_VALUE(axes_[i].size >= 1, "mesh: axis ", axes_[i].name, " must be at least 1; got ",
                      axes_[i].size, " [SW0505]");
    TORCH_CHECK_VALUE(axis_index(axes_[i].name) == int(i), "mesh: axis ", axes_[i].name,
                      " must be named once; got it twice [SW0506]");
    product *= axes_[i].size;
  }
  TORCH_CHECK_VALUE(product == world_size, "mesh: the axes' sizes must multiply to the world size; got ",
                    product, " and ", world_size, " [SW0507]");
  TORCH_CHECK_VALUE(rank >= 0 && rank < world_size, "mesh: rank must be in [0, ", world_size, "); got ", rank,
                    " [SW0508]");
}

int Mesh::axis_index(const std::string& axis) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return int(i);
  }
  TORCH_CHECK_VALUE(false, "mesh: no axis is named ", axis, " [SW0509]");
}

int Mesh::stride(const std::string& axis) const {
  int stride = 1;
  for (int i = int(axes_.size()) - 1; i > axis_index(axis); --i) stride *= axes_[size_t(i)].size;
  return stride;
}

int Mesh::size(const std::string& axis) const {
  return axes_[size_t(axis_index(axis))].size;
}

int Mesh::coordinate(const std::string& axis) const {
  return rank_ / stride(axis) % size(axis);
}

std::vector<int> Mesh::ranks(const std::string& axis) const {
  const int first = rank_ - coordinate(axis) * stride(axis);
  std::vector<int> ranks;
  for (int i = 0; i < size(axis); ++i) ranks.push_back(first + i * stride(axis));
  return ranks;
}

Group Mesh::group(const std::string& axis) {
  const auto found = groups_.find(axis);
  if (found != groups_.end()) return found->second;
  return groups_.emplace(axis, connect_(axis, ranks(axis))).first->second;
}

}  // namespace shardwise::comm
