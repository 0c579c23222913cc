// The commands of the program, one file each: they parse flags, call the library, and print.
#pragma once
#include <string>
#include <vector>

namespace shardwise::cli {

/// The process's command line: all of `argv` (a launcher runs it again), and the `arguments` after the
/// command.
struct Call {
  std::vector<std::string> argv, arguments;
};

/// Each command returns the process's exit code. Errors: c10::ValueError for a usage error (exit code 2), any
/// other exception for a failure at run time (exit code 1).
int train_command(const Call& call);
int generate_command(const Call& call);
int evaluate_command(const Call& call);
int doctor_command(const Call& call);
int tokenize_command(const Call& call);
int chat_template_command(const Call& call);
int plan_command(const Call& call);
int inspect_command(const Call& call);
int shard_command(const Call& call);
int merge_command(const Call& call);
int quantize_command(const Call& call);
int bench_command(const Call& call);
int profile_command(const Call& call);
int report_command(const Call& call);

}  // namespace shardwise::cli
