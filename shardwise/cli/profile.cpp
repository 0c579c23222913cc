// `shardwise profile WHAT`: experiments with tensor parallelism, one command each.
#include "shardwise/cli/profile.h"

#include <c10/util/Exception.h>

#include <cstdio>

#include "shardwise/base/error.h"

namespace shardwise::cli {
namespace {

struct Experiment {
  const char* name;
  int (*run)(const Call&);
  const char* help;
};

constexpr Experiment kExperiments[] = {
    {"products", profile_products_command,
     "matrix products over size and rows, next to the processor's limits"},
    {"mlp", profile_mlp_command, "an MLP over ranks and width: computation, communication and their ratio"},
    {"block", profile_block_command, "a decoder block over ranks: speed-up, weights, share of communication"},
    {"step", profile_step_command,
     "a training step over ranks: computation, communication, waiting, optimizer"},
};

void print_experiments() {
  std::puts(
      "Times tensor parallelism over numbers of ranks, or computes the times on a described machine.\n");
  std::puts("Usage: shardwise profile WHAT [FLAGS]\n");
  for (const Experiment& one : kExperiments) std::printf("  %-10s%s\n", one.name, one.help);
  std::puts("\n  --help    print this help; shardwise profile WHAT --help lists the flags");
}

}  // namespace

int profile_command(const Call& call) {
  const std::string name = call.arguments.empty() ? "" : call.arguments[0];
  if (name == "--help" || name == "-h") return print_experiments(), 0;
  for (const Experiment& one : kExperiments) {
    if (name == one.name) return one.run({call.argv, {call.arguments.begin() + 1, call.arguments.end()}});
  }
  TORCH_CHECK_VALUE(false, "profile: the first argument must be products, mlp, block or step; got ",
                    name.empty() ? "none" : base::shortened(name), "; see shardwise profile --help [SW0795]");
}

}  // namespace shardwise::cli
