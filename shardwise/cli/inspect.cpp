// `shardwise inspect`: lists a checkpoint's tensors and their shards on N ranks.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/base/json.h"
#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/inspect.h"
#include "shardwise/checkpoint/tied_head.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"
#include "shardwise/cli/units.h"
#include "shardwise/config/layout.h"

namespace shardwise::cli {
namespace {

using checkpoint::InspectedTensor;
using checkpoint::Inspection;
using Shape = std::vector<int64_t>;

struct InspectOptions {
  std::optional<std::string> directory;
  int64_t tp = 1;
  bool json = false;
};

void add_flags(Flags& flags, InspectOptions& o) {
  flags.argument("DIR", o.directory, "checkpoint directory: DIR, DIR/step-N, or a Hugging Face directory");
  flags.value("--tp,--tensor-parallel-size,--tp-size N", o.tp, "ranks to shard the weights over [1]");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
}

// The longest name and the most dims that are shown as they are: more than those of any model in use. The
// table pads every row to its longest cell, so a hostile file could make it arbitrarily large.
constexpr size_t kMaxName = 120, kMaxDims = 8;

std::string name_text(const std::string& name) {
  return name.size() <= kMaxName ? base::printable(name) : base::shown(name);
}

std::string shape_text(const Shape& shape) {
  if (shape.size() > kMaxDims) return base::shown(nlohmann::json(shape));
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Joins the strings and collapses equal neighbors: "[6, 12] x2, [5, 12]".
std::string listed(const std::vector<std::string>& texts) {
  std::string line;
  for (size_t i = 0, next = 0; i < texts.size(); i = next) {
    while (next < texts.size() && texts[next] == texts[i]) ++next;
    line += (line.empty() ? "" : ", ") + texts[i];
    if (next - i > 1) line += fmt::format(" x{}", next - i);
  }
  return line;
}

Row row_of(const InspectedTensor& tensor) {
  Row row{name_text(tensor.name), io::dtype_name(tensor.dtype), shape_text(tensor.shape), tensor.rule};
  if (tensor.rank_shapes.size() < 2) return row;
  std::vector<std::string> shapes;
  for (const Shape& shape : tensor.rank_shapes) shapes.push_back(shape_text(shape));
  row.push_back(listed(shapes));
  return row;
}

std::string to_text(const Inspection& found) {
  std::vector<Row> rows{{"tensor", "dtype", "shape", "sharding"}};
  if (found.rank_bytes.size() > 1) rows[0].push_back(fmt::format("on {} ranks", found.rank_bytes.size()));
  for (const InspectedTensor& tensor : found.tensors) rows.push_back(row_of(tensor));
  std::string text = table(rows) + fmt::format("{}: {} parameters, {}", found.config.model_type,
                                               found.parameters, in_megabytes(found.bytes));
  if (found.config.quantization) text += "; " + found.config.quantization->text();
  if (found.rank_bytes.size() < 2) return text + "\n";
  std::vector<std::string> sizes;
  for (const int64_t bytes : found.rank_bytes) sizes.push_back(in_megabytes(bytes));
  return text + fmt::format("; per rank {}\n", listed(sizes));
}

nlohmann::ordered_json to_json(const InspectedTensor& tensor) {
  return {{"name", tensor.name},
          {"dtype", io::dtype_name(tensor.dtype)},
          {"shape", tensor.shape},
          {"rule", tensor.rule},
          {"rank_shapes", tensor.rank_shapes}};
}

std::string to_json(const Inspection& found) {
  const auto& quantization = found.config.quantization;
  nlohmann::ordered_json json{{"model_type", found.config.model_type},
                              {"quantization", quantization ? nlohmann::ordered_json(quantization->text())
                                                            : nlohmann::ordered_json()},
                              {"tp", found.rank_bytes.size()},
                              {"parameters", found.parameters},
                              {"bytes", found.bytes},
                              {"rank_bytes", found.rank_bytes},
                              {"bytes_read", found.bytes_read},
                              {"tensors", nlohmann::ordered_json::array()}};
  for (const InspectedTensor& tensor : found.tensors) json["tensors"].push_back(to_json(tensor));
  return json_line(json);
}

void check_values(const InspectOptions& o) {
  TORCH_CHECK_VALUE(o.directory, "inspect: DIR must name a checkpoint directory; got none [SW0083]");
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
  const config::Config config = config::load_config(directory);
  config::warn_of_unknown_tokens(config, "inspect");
  config::check_ranks("inspect", config, options.tp);
  const Inspection found = checkpoint::inspect(directory, static_cast<int>(options.tp));
  checkpoint::warn_of_missing_latest(*options.directory, directory, "inspect");
  checkpoint::warn_of_unused_head(directory, "inspect");
  print(options.json ? to_json(found) : to_text(found));
  return 0;
}

}  // namespace shardwise::cli
