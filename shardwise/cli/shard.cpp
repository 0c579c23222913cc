// `shardwise shard` and `shardwise merge`: write weights sharded for a tp size, or merged, to a new
// directory.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/base/isa.h"
#include "shardwise/checkpoint/atomic_directory.h"
#include "shardwise/checkpoint/panel_files.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/model_source.h"
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
  bool is_packed = false, json = false;
  ModelOptions packed = {};  // of the load whose weights are written
};

void add_flags(Flags& flags, ShardOptions& o) {
  flags.argument("IN", o.in,
                 "model directory: Hugging Face, DIR/step-N, DIR, or the output of shardwise shard");
  flags.argument("OUT", o.out, "directory to write; it must not exist");
  if (o.command == "shard") {
    flags.value("--tp,--to,--tensor-parallel-size,--tp-size N", o.tp, "ranks to shard the weights over");
    flags.on_off("--packed", o.is_packed,
                 "write panel files, in the layout that products read, for generate and eval at this --tp: "
                 "a load maps them within milliseconds");
    add_dtype_flag(flags, o.packed.dtype);
    add_quantize_flags(flags, o.packed);
  }
  flags.on_off("--json", o.json, "print a JSON summary");
}

void check_values(const ShardOptions& o) {
  TORCH_CHECK_VALUE(o.in && o.out, o.command,
                    ": IN and OUT must name the directories to read and to write; got ",
                    o.in ? "one" : "none", " [SW0092]");
  TORCH_CHECK_VALUE(o.tp || o.command == "merge", o.command, ": --tp must be given; got none [SW0100]");
  const ModelOptions& packed = o.packed;
  const bool packs = packed.dtype != "auto" || packed.quantize || packed.group_size || packed.head;
  TORCH_CHECK_VALUE(o.is_packed || !packs, o.command,
                    ": --dtype, --quantize, --group-size and --head need --packed; got none [SW0744]");
}

WriteSummary write(const ShardOptions& o) {
  const auto in = checkpoint::resolve(*o.in);
  checkpoint::warn_of_missing_latest(*o.in, in, o.command);
  if (o.tp) config::check_ranks(o.command, config::load_config(in), *o.tp);
  WriteProgress written(o.command);
  if (!o.tp) return checkpoint::merge(in, *o.out, written.on_progress());
  return checkpoint::shard(in, *o.out, static_cast<int>(*o.tp), written.on_progress());
}

/// Checks that the load packs weights. Errors: c10::ValueError if all of them stay tensors.
void check_packs(const ModelSource& model) {
  const bool packs_bf16 =
      quant::inference_format(model.dtype(), kernels::kPanelOutputs, kernels::kPanelOutputs).has_value();
  TORCH_CHECK_VALUE(
      packs_bf16 || model.config().quantization,
      "shard: --packed needs weights that are packed: quantized ones, or bf16 on a processor with "
      "AVX512-BF16; got ",
      model.dtype_name(), " on ", base::name_of(base::best_isa()), " [SW0745]");
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

/// Loads the weights on every rank as generate does, and writes what it computes with.
int write_packed(const ShardOptions& o, const Call& call) {
  const base::Stopwatch clock;
  ModelOptions options = o.packed;
  options.model = o.in;
  options.tp = *o.tp;
  const ModelSource model("shard", options);
  TORCH_CHECK_VALUE(!model.maps_panels(), "shard: IN must not be packed already; got ", *o.in, " [SW0746]");
  check_packs(model);
  checkpoint::new_target_path("shard", *o.out);
  const checkpoint::PanelOptions written{*o.tp, model.dtype_name(), options.quantize, options.group_size,
                                         options.head};
  return run_on_ranks(
      {launch_context_for(*o.tp), *o.tp, RankOptions{}, call.argv}, [&](const comm::Group& group) {
        const bool prints = group.rank() == 0;
        if (prints) model.warn("shard");
        model::DecoderWeights weights(model.config(), group, model.dtype(), model::WeightUse::inference);
        const checkpoint::LoadCost loaded = model.load(weights, /*seed=*/0, group);
        checkpoint::log_load("shard", model.directory(), loaded, group);
        std::optional<WriteProgress> progress;  // on rank 0, which removes an unfinished directory
        if (prints) progress.emplace("shard");
        const auto on_progress = progress ? progress->on_progress() : [](int64_t, int64_t) {};
        const WriteSummary summary =
            checkpoint::write_panel_files(model.directory(), *o.out, weights, written, on_progress);
        progress.reset();
        if (prints)
          print(o.json ? to_json(o, summary, clock.seconds()) : to_text(o, summary, clock.seconds()));
      });
}

int run(ShardOptions options, const std::string& description, const Call& call) {
  Flags flags(options.command, description);
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  check_values(options);
  if (options.is_packed) return write_packed(options, call);
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
