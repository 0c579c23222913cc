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

/// "net:<number>" of this process; the number alone tells namespaces of a machine apart.
std::string name_space(const std::string& kind) {
  struct stat found {};
  const bool is_there = stat(("/proc/self/ns/" + kind).c_str(), &found) == 0;
  return kind + ":" + std::to_string(is_there ? found.st_ino : 0);
}

}  // namespace

uint64_t own_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return base::hash_of(boot.empty() ? host_name() : boot);
}

uint64_t own_node() {
  return base::hash_of(std::to_string(own_machine()) + name_space("net") + name_space("pid"));
}

}  // namespace shardwise::comm
