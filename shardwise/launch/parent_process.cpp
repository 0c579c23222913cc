#include "shardwise/launch/parent_process.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

namespace shardwise::launch {

std::string parent_process() {
  constexpr int kFieldsToStartTime =
      20;  // after the name, the only field that may contain spaces; proc(5), field 22
  const pid_t parent = getppid();
  std::ifstream file(fmt::format("/proc/{}/stat", parent));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string start_time;
  for (int i = 0; i < kFieldsToStartTime; ++i) fields >> start_time;
  TORCH_CHECK(fields, "environment: the parent's start time is read from /proc; got nothing from /proc/",
              parent, "/stat; set SHARDWISE_JOB [SW0113]");
  return fmt::format("{}-{}", parent, start_time);
}

}  // namespace shardwise::launch
