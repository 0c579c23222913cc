// `shardwise shard` and `shardwise merge`: weights cut for a tp size, or whole again, in a directory of their
// own.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/shard.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/written_bytes.h"
#include "shardwise/model/layout.h"

namespace shardwise::cli {
namespace {

using checkpoint::Written;

struct ShardOptions {
  std::string command;
  std::optional<std::string> in = {}, out = {};
  std::optional<int64_t> tp = {};
  bool json = false;
};

void add_flags(Flags& flags, ShardOptions& o) {
  flags.argument("IN", o.in,
                 "directory of a model: Hugging Face's, DIR/step-N, DIR, or one that shard wrote");
  flags.argument("OUT", o.out, "directory to write, which must not exist yet");
  if (o.command == "shard") {
    flags.value("--tp,--to,--tensor-parallel-size,--tp-size N", o.tp, "ranks that the weights are cut for");
  }
  flags.on_off("--json", o.json, "one JSON summary on standard output at the end");
}

void check_values(const ShardOptions& o) {
  TORCH_CHECK_VALUE(o.in && o.out, o.command, ": IN and OUT name the directories to read and to write; got ",
                    o.in ? "one" : "none");
  TORCH_CHECK_VALUE(o.tp || o.command == "merge", o.command, ": --tp says for how many ranks; got none");
}

Written write(const ShardOptions& o) {
  const auto in = checkpoint::resolve(*o.in);
  if (o.tp) model::check_ranks(o.command, model::load_config(in), *o.tp);
  WrittenBytes written(o.command);
  if (!o.tp) return checkpoint::merge(in, *o.out, written.on_progress());
  return checkpoint::shard(in, *o.out, static_cast<int>(*o.tp), written.on_progress());
}

std::string to_text(const ShardOptions& o, const Written& written, double seconds) {
  return fmt::format("{} tensors, {:.2f} MB in {} files: {} ({:.1f} s)\n", written.tensors,
                     static_cast<double>(written.bytes) / 1e6, written.files.size(), *o.out, seconds);
}

std::string to_json(const ShardOptions& o, const Written& written, double seconds) {
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
  const Written written = write(options);
  print(options.json ? to_json(options, written, clock.seconds())
                     : to_text(options, written, clock.seconds()));
  return 0;
}

}  // namespace

int shard_command(const Call& call) {
  return run({.command = "shard"},
             "Writes a model's weights as one file a rank; runs at that --tp read them without slicing.",
             call);
}

int merge_command(const Call& call) {
  return run({.command = "merge"},
             "Writes a model's weights, whatever they are cut for, as one whole model.safetensors.", call);
}

}  // namespace shardwise::cli
