#include "shardwise/comm/node.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "shardwise/base/hash.h"

namespace shardwise::comm {
namespace {

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

/// Returns "net:<number>"; the number identifies a namespace of the machine.
std::string name_space(const std::string& kind) {
  struct stat found {};
  const bool exists = stat(("/proc/self/ns/" + kind).c_str(), &found) == 0;
  return kind + ":" + std::to_string(exists ? found.st_ino : 0);
}

}  // namespace

uint64_t machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return base::hash_of(boot.empty() ? host_name() : boot);
}

uint64_t node_id() {
  return base::hash_of(std::to_string(machine_id()) + name_space("net") + name_space("pid"));
}

}  // namespace shardwise::comm
