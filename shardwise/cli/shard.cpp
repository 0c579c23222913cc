// `shardwise shard` and `shardwise merge`: write weights sharded for a tp size, or merged, to a new
// directory.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/shard.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/write_progress.h"
#include "shardwise/config/layout.h"

namespace shardwise::cli {
namespace {

using checkpoint::WriteSummary;

struct ShardOptions {
  std::string command;
  std::optional<std::string> in = {}, out = {};
  std::optional<int64_t> tp = {};
  bool json = false;
};

void add_flags(Flags& flags, ShardOptions& o) {
  flags.argument("IN", o.in,
                 "model directory: Hugging Face, DIR/step-N, DIR, or the output of shardwise shard");
  flags.argument("OUT", o.out, "directory to write; it must not exist");
  if (o.command == "shard") {
    flags.value("--tp,--to,--tensor-parallel-size,--tp-size N", o.tp, "ranks to shard the weights over");
  }
  flags.on_off("--json", o.json, "print a JSON summary");
}

void check_values(const ShardOptions& o) {
  TORCH_CHECK_VALUE(o.in && o.out, o.command,
                    ": IN and OUT must name the directories to read and to write; got ",
                    o.in ? "one" : "none", " [SW0092]");
  TORCH_CHECK_VALUE(o.tp || o.command == "merge", o.command, ": --tp must be given; got none [SW0100]");
}

WriteSummary write(const ShardOptions& o) {
  const auto in = checkpoint::resolve(*o.in);
  checkpoint::warn_of_missing_latest(*o.in, in, o.command);
  if (o.tp) config::check_ranks(o.command, config::load_config(in), *o.tp);
  WriteProgress written(o.command);
  if (!o.tp) return checkpoint::merge(in, *o.out, written.on_progress());
  return checkpoint::shard(in, *o.out, static_cast<int>(*o.tp), written.on_progress());
}

std::string to_text(const ShardOptions& o, const WriteSummary& written, double seconds) {
  return fmt::format("{} tensors, {:.2f} MB in {} files: {} ({:.1f} s)\n", written.tensors,
                     static_cast<double>(written.bytes) / 1e6, written.files.size(), *o.out, seconds);
}

std::string to_json(const ShardOptions& o, const WriteSummary& written, double seconds) {
  nlohmann::ordered_json json{{"out", *o.out}};
  if (o.tp) json["tp"] = *o.tp;
  json.update({{"files", written.files},
               {"tensors", written.tensors},
               {"bytes", written.bytes},
               {"seconds", seconds}});
  return json_line(json);
}

int run(ShardOptions options, const std::string& description, const Call& call) {
  Flags flags(options.command, description);
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  check_values(options);
  const base::Stopwatch clock;
  const WriteSummary written = write(options);
  print(options.json ? to_json(options, written, clock.seconds())
                     : to_text(options, written, clock.seconds()));
  return 0;
}

}  // namespace

int shard_command(const Call& call) {
  return run({.command = "shard"},
             "Writes a model's weights as one file per rank, which runs at that --tp read without slicing.",
             call);
}

int merge_command(const Call& call) {
  return run({.command = "merge"},
             "Merges a model's weights, sharded for any tp size, into one model.safetensors.", call);
}

}  // namespace shardwise::cli
