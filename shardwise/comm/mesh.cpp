#include "shardwise/comm/mesh.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise::comm {
namespace {

std::string name_of(const Mesh::Names& axes) {
  return fmt::format("{}", fmt::join(axes, "+"));
}

}  // namespace

Mesh::Mesh(Axes axes, int rank, int world_size, const Connect& connect, const std::vector<Names>& combined)
    : Mesh(std::move(axes), rank, world_size, connect, combined, std::make_shared<Groups>()) {}

Mesh::Mesh(Axes axes, int rank, int world_size, const Connect& connect, const std::vector<Names>& combined,
           std::shared_ptr<Groups> groups)
    : axes_(std::move(axes)), rank_(rank), groups_(std::move(groups)) {
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
  connect_groups(connect, combined);
}

Mesh Mesh::view(Axes axes, const Connect& connect, const std::vector<Names>& combined) const {
  return Mesh(std::move(axes), rank_, world_size(), connect, combined, groups_);
}

void Mesh::connect_groups(const Connect& connect, const std::vector<Names>& combined) {
  std::vector<Names> all;
  for (const Axis& axis : axes_) all.push_back({axis.name});
  all.insert(all.end(), combined.begin(), combined.end());
  for (const Names& axes : all) {
    const std::vector<int> members = ranks(axes);
    if (!groups_->contains(members)) groups_->emplace(members, connect(name_of(axes), members));
  }
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

int Mesh::world_size() const {
  int size = 1;
  for (const Axis& axis : axes_) size *= axis.size;
  return size;
}

int Mesh::size(const std::string& axis) const {
  return axes_[size_t(axis_index(axis))].size;
}

int Mesh::coordinate(const std::string& axis, int rank) const {
  return rank / stride(axis) % size(axis);
}

std::vector<int> Mesh::ranks(const Names& axes) const {
  std::vector<int> indices;
  for (const std::string& axis : axes) indices.push_back(axis_index(axis));
  TORCH_CHECK_VALUE(std::ranges::adjacent_find(indices, std::ranges::greater_equal()) == indices.end(),
                    "mesh: axes must be in the mesh's order, each once; got ", name_of(axes), " [SW0860]");
  // The last axis varies fastest, so the ranks ascend.
  std::vector<int> members{rank_};
  for (const std::string& axis : axes) {
    std::vector<int> along;
    for (const int member : members) {
      const int first = member - coordinate(axis) * stride(axis);
      for (int i = 0; i < size(axis); ++i) along.push_back(first + i * stride(axis));
    }
    members = std::move(along);
  }
  return members;
}

const Group& Mesh::group(const Names& axes) const {
  const auto found = groups_->find(ranks(axes));
  TORCH_CHECK_VALUE(found != groups_->end(), "mesh: the group of ", name_of(axes),
                    " must be among those it was made with; got none [SW0861]");
  return found->second;
}

std::vector<Group> Mesh::groups() const {
  std::vector<Group> all;
  for (const auto& [members, group] : *groups_) all.push_back(group);
  return all;
}

std::optional<int64_t> Mesh::symmetric_heaps_peak() const {
  int64_t peak = 0;
  for (const Group& group : groups()) {
    if (group.size() == 1) continue;
    if (!group.has_symmetric_heap()) return std::nullopt;
    peak += group.symmetric_heap()->peak_bytes();
  }
  return peak;
}

}  // namespace shardwise::comm
