#include "shardwise/doctor/mesh.h"

#include <fmt/format.h>

#include <numeric>

#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/mesh.h"

namespace shardwise::doctor {

namespace {

/// An axis of a mesh and the expected ranks of its group.
struct AxisCase {
  std::vector<comm::Mesh::Axis> axes;
  std::string axis;
  std::vector<int> ranks;

  std::string name() const {
    return fmt::format("{} of {}={} x {}={}", axis, axes[0].name, axes[0].size, axes[1].name, axes[1].size);
  }
};

/// Returns both orders of the axes.
std::vector<AxisCase> axis_cases(const comm::Group& group) {
  const comm::Mesh::Axis dp{"dp", 1}, tp{"tp", group.size()};
  std::vector<int> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int> self = {group.rank()};
  return {{{dp, tp}, "tp", all}, {{dp, tp}, "dp", self}, {{tp, dp}, "tp", all}, {{tp, dp}, "dp", self}};
}

/// Checks the ranks of the axis and this rank's coordinate.
bool passes(const AxisCase& axis_case, const comm::Group& group) {
  std::vector<int> connected;
  const auto connect = [&](const std::string&, const std::vector<int>& ranks) {
    connected = ranks;
    return ranks.size() == 1 ? comm::Group() : group;
  };
  comm::Mesh mesh(axis_case.axes, group.rank(), group.size(), connect);
  const comm::Group made = mesh.group(axis_case.axis);
  return connected == axis_case.ranks && mesh.size(axis_case.axis) == made.size() &&
         mesh.coordinate(axis_case.axis) == made.rank();
}

/// Returns the index of the first case that fails, or −1.
int first_error(const std::vector<AxisCase>& cases, const comm::Group& group) {
  for (size_t i = 0; i < cases.size(); ++i)
    if (!passes(cases[i], group)) return static_cast<int>(i);
  return -1;
}

}  // namespace

Check check_mesh(const comm::Group& group) {
  const std::vector<AxisCase> cases = axis_cases(group);
  const auto errors = comm::gather_values(first_error(cases, group), group);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank] < 0) continue;
    const std::string name = cases[static_cast<size_t>(errors[rank])].name();
    return {"mesh", "", false, fmt::format("the group of {} is wrong on rank {}", name, rank)};
  }
  return {"mesh", "", true, "tp has all ranks and dp one, in either order"};
}

}  // namespace shardwise::doctor
