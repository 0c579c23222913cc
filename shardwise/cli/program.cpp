// Picks the command, and turns errors into one line and an exit code: 2 for the caller's mistakes, 1 for
// failures.
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <cstdio>
#include <string>

#include "shardwise/base/error.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/program.h"
#include "shardwise/cli/signals.h"
#include "shardwise/comm/launch.h"

namespace shardwise::cli {
namespace {

struct Command {
  const char* name;
  int (*run)(const Call&);
  const char* help;
};

constexpr Command kCommands[] = {
    {"train", train_command, "train a decoder-only Transformer on text"},
    {"generate", generate_command, "continue a prompt from a checkpoint"},
    {"eval", evaluate_command, "say how well a model predicts a text"},
    {"doctor", doctor_command, "say where a sharded model parts from the unsharded one, if anywhere"},
    {"tokenize", tokenize_command, "turn text into token ids, and back"},
    {"chat-template", chat_template_command, "print messages as the text that a model is given"},
    {"inspect", inspect_command, "list a checkpoint's tensors and what each rank holds of them"},
    {"shard", shard_command, "write a model's weights as one file a rank"},
    {"merge", merge_command, "write sharded weights as whole ones again"},
    {"quantize", quantize_command, "write a model with weights of 8 or 4 bits"},
    {"bench", bench_command, "say how fast parts of the library are on this machine"},
};

void print_help() {
  std::puts(
      "Splits one Transformer over several ranks (tensor and sequence parallelism), to train it and to run "
      "it.\n");
  std::puts("Usage: shardwise COMMAND [FLAGS]\n");
  for (const Command& command : kCommands) std::printf("  %-15s%s\n", command.name, command.help);
  std::puts("\n  --help      this text; shardwise COMMAND --help for the flags of a command");
  std::puts("  --version   version of this program and of its PyTorch");
}

int run(const Call& call) {
  const std::string name = call.argv.size() > 1 ? call.argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") return print_help(), 0;
  if (name == "--version") return std::puts("shardwise " SHARDWISE_VERSION " (PyTorch " TORCH_VERSION ")"), 0;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(call);
  }
  TORCH_CHECK_VALUE(false, "the first argument is a command; got ", name.empty() ? "none" : name,
                    "; see shardwise --help");
}

int fail(const std::exception& error, int exit_code) {
  tell(error);
  return exit_code;
}

}  // namespace

void tell(const std::exception& error) {
  std::fprintf(stderr, "shardwise: %s\n", base::one_line(error).c_str());
}

int run_program(const std::vector<std::string>& argv) {
  Call call{argv, {}};
  if (argv.size() > 2) call.arguments.assign(argv.begin() + 2, argv.end());
  try {
    const int exit_code = run(call);
    if (exit_code == 0 || exit_code == comm::kCheckFailedExitCode) check_output();
    return exit_code;
  } catch (const EndedBySignal& error) {
    return fail(error, 128 + error.signal());
  } catch (const c10::ValueError& error) {
    return fail(error, comm::kUsageErrorExitCode);
  } catch (const std::exception& error) {
    return fail(error, 1);
  }
}

}  // namespace shardwise::cli
