#include "shardwise/doctor/verdict.h"

#include <fmt/format.h>

#include "shardwise/comm/gather_values.h"

namespace shardwise::doctor {

Audit of_all_ranks(const Audit& right, const std::string& wrong, const comm::Group& group) {
  const std::string own = wrong.empty() ? "" : fmt::format("on rank {} {}", group.rank(), wrong);
  const std::string first = comm::first_text(own, group);
  return first.empty() ? right : Audit{right.name, right.of, false, first};
}

}  // namespace shardwise::doctor
