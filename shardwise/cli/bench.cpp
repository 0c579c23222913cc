// `shardwise bench WHAT`: times parts of the library on this machine.
#include "shardwise/cli/bench.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <filesystem>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"

namespace shardwise::cli {
namespace {

struct Benchmark {
  const char* name;
  int (*run)(const Call&);
  const char* help;
};

constexpr Benchmark kBenches[] = {
    {"comm", bench_comm_command, "time all_reduce, next to a memcpy of the same size"},
    {"overlap", bench_overlap_command,
     "time the linear layers of TP+SP with their collectives, next to the GEMMs alone"},
    {"decode", bench_decode_command, "time a token of each text with random weights in every format"},
    {"prefill", bench_prefill_command, "time prompts with random weights in every format"},
    {"step", bench_step_command, "time a training step with random weights, next to arithmetic in registers"},
    {"kernels", bench_kernels_command, "time kernels, next to PyTorch's operators and to copying a tensor"},
    {"machine", bench_machine_command, "measure the rates that shardwise plan --machine FILE needs"},
    {"products", bench_products_command,
     "time products of a model's weights, next to reading memory and to arithmetic in registers"},
};

constexpr double kMaxSeconds = 3600;

void print_benches() {
  std::puts("Times parts of the library on this machine.\n");
  std::puts("Usage: shardwise bench WHAT [FLAGS]\n");
  for (const Benchmark& bench : kBenches) std::printf("  %-10s%s\n", bench.name, bench.help);
  std::puts("\n  --help    print this help; shardwise bench WHAT --help lists the flags");
}

}  // namespace

void check_seconds(const std::string& command, double seconds) {
  TORCH_CHECK_VALUE(seconds > 0 && seconds <= kMaxSeconds, command,
                    ": --seconds must be above 0 and at most 3600; got ", seconds, " [SW0091]");
}

void prepare_measured_file(const std::string& command, const std::string& flag, const std::string& file) {
  TORCH_CHECK_VALUE(!file.empty(), command, ": ", flag,
                    " needs an absolute path in XDG_CACHE_HOME or HOME, where it saves its result; got "
                    "neither [SW0088]");
  base::make_directories(std::filesystem::path(file).parent_path());
}

int bench_command(const Call& call) {
  const std::string name = call.arguments.empty() ? "" : call.arguments[0];
  if (name == "--help" || name == "-h") return print_benches(), 0;
  for (const Benchmark& bench : kBenches) {
    if (name == bench.name) return bench.run({call.argv, {call.arguments.begin() + 1, call.arguments.end()}});
  }
  TORCH_CHECK_VALUE(false, "bench: the first argument must be a benchmark; got ",
                    name.empty() ? "none" : base::shortened(name), "; see shardwise bench --help [SW0084]");
}

}  // namespace shardwise::cli
