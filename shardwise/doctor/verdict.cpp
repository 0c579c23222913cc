#include "shardwise/doctor/verdict.h"

#include <fmt/format.h>

#include "shardwise/comm/gather_values.h"

namespace shardwise::doctor {

Check verdict_of_all_ranks(const Check& passed, const std::string& error, const comm::Group& group) {
  const std::string local = error.empty() ? "" : fmt::format("on rank {} {}", group.rank(), error);
  const std::string first = comm::first_text(local, group);
  return first.empty() ? passed : Check{passed.name, passed.scope, false, first};
}

}  // namespace shardwise::doctor
