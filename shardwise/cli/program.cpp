// Runs the command and converts errors to one line and an exit code: 2 for usage errors, 1 for failures.
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <cstdio>
#include <new>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/base/isa.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/program.h"
#include "shardwise/cli/signals.h"
#include "shardwise/launch/launch.h"
#include "shardwise/version.h"

namespace shardwise::cli {
namespace {

struct Command {
  const char* name;
  int (*run)(const Call&);
  const char* help;
};

constexpr Command kCommands[] = {
    {"train", train_command, "train a decoder-only Transformer on text"},
    {"generate", generate_command, "generate text from prompts"},
    {"eval", evaluate_command, "compute a model's perplexity on text"},
    {"doctor", doctor_command, "compare a sharded model with the unsharded one, layer by layer"},
    {"plan", plan_command, "rank the ways to split a training step over a cluster"},
    {"tokenize", tokenize_command, "convert text to token ids and back"},
    {"chat-template", chat_template_command, "render chat messages with a model's chat template"},
    {"inspect", inspect_command, "list a checkpoint's tensors and their shard on each rank"},
    {"shard", shard_command, "write a model's weights as one file per rank"},
    {"merge", merge_command, "merge sharded weights into one file"},
    {"quantize", quantize_command, "write a model with int8 or int4 weights"},
    {"bench", bench_command, "time parts of the library on this machine"},
    {"profile", profile_command, "time tensor parallelism over ranks and sizes, or compute it for a machine"},
    {"report", report_command,
     "compare training runs: their loss, time, memory and bytes sent, as text or a page"},
};

void print_help() {
  std::puts("Trains and runs Transformers with tensor, sequence, data and pipeline parallelism.\n");
  std::puts("Usage: shardwise COMMAND [FLAGS]\n");
  for (const Command& command : kCommands) std::printf("  %-15s%s\n", command.name, command.help);
  std::puts("\n  --help      print this help; shardwise COMMAND --help lists the flags of a command");
  std::puts("  --version   print the versions of this program and of PyTorch");
}

int run(const Call& call) {
  base::best_isa();  // refuses an invalid SHARDWISE_MAX_ISA before work starts
  const std::string name = call.argv.size() > 1 ? call.argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") return print_help(), 0;
  if (name == "--version") return std::puts("shardwise " SHARDWISE_VERSION " (PyTorch " TORCH_VERSION ")"), 0;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(call);
  }
  TORCH_CHECK_VALUE(false, "the first argument must be a command; got ",
                    name.empty() ? "none" : base::shortened(name), "; see shardwise --help [SW0001]");
}

/// Errors: also c10::OutOfMemoryError for an allocation that fails outside of tensors, whose error names
/// nothing. run_on_ranks reports that of a rank.
int run_within_memory(const Call& call) try { return run(call); } catch (const std::bad_alloc&) {
  TORCH_CHECK_WITH(OutOfMemoryError, false,
                   "out of memory; read less input at once, or free memory of this machine [SW0621]");
}

int fail(const std::exception& error, int exit_code) {
  print_error(error);
  return exit_code;
}

}  // namespace

void print_error(const std::exception& error) {
  std::fprintf(stderr, "shardwise: %s\n", base::one_line(error).c_str());
}

int run_program(const std::vector<std::string>& argv) {
  Call call{argv, {}};
  if (argv.size() > 2) call.arguments.assign(argv.begin() + 2, argv.end());
  try {
    const int exit_code = run_within_memory(call);
    if (exit_code == 0 || exit_code == launch::kCheckFailedExitCode) check_output();
    return exit_code;
  } catch (const EndedBySignal& error) {
    return fail(error, 128 + error.signal());
  } catch (const c10::ValueError& error) {
    return fail(error, launch::kUsageErrorExitCode);
  } catch (const std::exception& error) {
    return fail(error, 1);
  }
}

}  // namespace shardwise::cli
