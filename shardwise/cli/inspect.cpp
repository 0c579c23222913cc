// `shardwise inspect`: lists a checkpoint's tensors and their shards on N ranks.
#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/tied_head.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/inspect_report.h"
#include "shardwise/cli/model_source.h"
#include "shardwise/cli/output.h"
#include "shardwise/config/layout.h"

namespace shardwise::cli {
namespace {

struct InspectOptions {
  std::optional<std::string> directory;
  std::optional<int64_t> tp;
  bool json = false;
};

void add_flags(Flags& flags, InspectOptions& o) {
  flags.argument("DIR", o.directory, "checkpoint directory: DIR, DIR/step-N, or a Hugging Face directory");
  flags.value("--tp,--tensor-parallel-size,--tp-size N", o.tp,
              "ranks to shard the weights over [1; panel files: their own]");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
}

void check_values(const InspectOptions& o) {
  TORCH_CHECK_VALUE(o.directory, "inspect: DIR must name a checkpoint directory; got none [SW0083]");
}

template <class Found>
void print_found(const Found& found, bool as_json) {
  print(as_json ? cli::to_json(found) : cli::to_text(found));
}

void inspect_panel_files(const std::filesystem::path& directory, const InspectOptions& o) {
  const checkpoint::PanelInspection found = checkpoint::inspect_panels(directory);
  config::warn_of_unknown_tokens(found.config, "inspect");
  if (o.tp) check_tp_of_panels("inspect", directory, *o.tp, found.options);
  print_found(found, o.json);
}

void inspect_weights(const std::filesystem::path& directory, const InspectOptions& o) {
  const int64_t tp = o.tp.value_or(1);
  const config::Config config = config::load_config(directory);
  config::warn_of_unknown_tokens(config, "inspect");
  config::check_ranks("inspect", config, tp);
  const checkpoint::Inspection found = checkpoint::inspect(directory, static_cast<int>(tp));
  checkpoint::warn_of_unused_head(directory, "inspect");
  print_found(found, o.json);
}

}  // namespace

int inspect_command(const Call& call) {
  InspectOptions options;
  Flags flags("inspect",
              "Lists a checkpoint's tensors and their shard on each rank; reads file headers only.");
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  check_values(options);
  const auto directory = checkpoint::resolve(*options.directory);
  const bool is_packed = checkpoint::has_panel_files(directory);
  is_packed ? inspect_panel_files(directory, options) : inspect_weights(directory, options);
  checkpoint::warn_of_missing_latest(*options.directory, directory, "inspect");
  return 0;
}

}  // namespace shardwise::cli
