// The fault that $SHARDWISE_MUTATION names is on, in this process. `shardwise` itself, which some tests
// start, has no faults; `shardwise_mutant` has, on all of its ranks.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "shardwise/base/mutation.h"

namespace shardwise::base {
namespace {

std::optional<Mutation> named_by_environment() {
  const char* name = std::getenv("SHARDWISE_MUTATION");
  if (name == nullptr) return std::nullopt;
#define SHARDWISE_COMPARE(fault) \
  if (std::strcmp(name, #fault) == 0) return Mutation::fault;
  SHARDWISE_FAULTS(SHARDWISE_COMPARE)
#undef SHARDWISE_COMPARE
  std::fprintf(stderr, "SHARDWISE_MUTATION: must name a fault of base/mutation.h; got %s\n", name);
  std::exit(2);
}

}  // namespace

bool mutated(Mutation mutation) {
  static const std::optional<Mutation> active = named_by_environment();
  return active == mutation;
}

}  // namespace shardwise::base
