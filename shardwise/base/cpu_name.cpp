#include "shardwise/base/cpu_name.h"

#include <fstream>

namespace shardwise::base {

namespace {

std::string read_name() {
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

std::string cpu_name() {
  static const std::string name = read_name();  // cached: every group's rendezvous calls this
  return name;
}

}  // namespace shardwise::base
