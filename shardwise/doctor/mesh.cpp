#include "shardwise/doctor/mesh.h"

#include <fmt/format.h>

#include <numeric>

#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/mesh.h"

namespace shardwise::doctor {

namespace {

/// An axis of a mesh, and whose group it should be.
struct Question {
  std::vector<comm::Mesh::Axis> axes;
  std::string axis;
  std::vector<int> ranks;

  std::string name() const {
    return fmt::format("{} of {}={} x {}={}", axis, axes[0].name, axes[0].size, axes[1].name, axes[1].size);
  }
};

/// In both orders: where an axis stands must not matter.
std::vector<Question> questions(const comm::Group& group) {
  const comm::Mesh::Axis dp{"dp", 1}, tp{"tp", group.size()};
  std::vector<int> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<int> alone = {group.rank()};
  return {{{dp, tp}, "tp", all}, {{dp, tp}, "dp", alone}, {{tp, dp}, "tp", all}, {{tp, dp}, "dp", alone}};
}

/// The ranks that are asked for, and this rank's place in the group made of them.
bool holds(const Question& question, const comm::Group& group) {
  std::vector<int> asked;
  const auto connect = [&](const std::string&, const std::vector<int>& ranks) {
    asked = ranks;
    return ranks.size() == 1 ? comm::Group() : group;
  };
  comm::Mesh mesh(question.axes, group.rank(), group.size(), connect);
  const comm::Group made = mesh.group(question.axis);
  return asked == question.ranks && mesh.size(question.axis) == made.size() &&
         mesh.coordinate(question.axis) == made.rank();
}

/// −1: none.
int first_wrong(const std::vector<Question>& questions, const comm::Group& group) {
  for (size_t i = 0; i < questions.size(); ++i)
    if (!holds(questions[i], group)) return static_cast<int>(i);
  return -1;
}

}  // namespace

Audit audit_mesh(const comm::Group& group) {
  const std::vector<Question> asked = questions(group);
  const auto wrong = comm::gather_values(first_wrong(asked, group), group);
  for (size_t rank = 0; rank < wrong.size(); ++rank) {
    if (wrong[rank] < 0) continue;
    const std::string name = asked[static_cast<size_t>(wrong[rank])].name();
    return {"mesh", "", false, fmt::format("the group of {} is wrong on rank {}", name, rank)};
  }
  return {"mesh", "", true, "tp is all ranks, dp each alone, in either order"};
}

}  // namespace shardwise::doctor
