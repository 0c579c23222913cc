// What every rank has found about its own part, as one audit.
#pragma once
#include <string>

#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// Collective: an audit whose detail is `right`, or what is wrong on the first rank where `wrong` is not
/// empty. Cost: comm::first_text's.
Audit of_all_ranks(const Audit& right, const std::string& wrong, const comm::Group& group);

}  // namespace shardwise::doctor
