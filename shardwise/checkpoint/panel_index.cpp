#include "shardwise/checkpoint/panel_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/checkpoint/index_format.h"
#include "shardwise/io/safetensors.h"

namespace shardwise::checkpoint {

using nlohmann::json;

namespace {

constexpr const char* kPanelFormat = "shardwise.panels";
constexpr int64_t kPanelVersion = 1;

std::optional<std::string> optional_text(const base::Fields& fields, const char* name) {
  if (!fields.find(name)) return std::nullopt;
  return fields.text(name);
}

std::optional<int64_t> optional_integer(const base::Fields& fields, const char* name) {
  if (!fields.find(name)) return std::nullopt;
  return fields.integer(name);
}

}  // namespace

PanelOptions read_panel_index(const std::filesystem::path& directory) {
  const std::string path = directory / kPanelIndex;
  const json parsed = base::read_json(path);
  const base::Fields fields(parsed, path + ": ");
  check_index_format(fields, path, kPanelFormat, kPanelVersion);
  PanelOptions options{fields.integer("tp"), fields.text("dtype"), optional_text(fields, "quantize"),
                       optional_integer(fields, "group_size"), optional_text(fields, "head")};
  TORCH_CHECK_VALUE(options.tp >= 1, path, ": tp must be at least 1; got ", options.tp, " [SW0732]");
  TORCH_CHECK_VALUE(options.dtype == "fp32" || options.dtype == "bf16", path,
                    ": dtype must be fp32 or bf16; got ", options.dtype, " [SW0733]");
  return options;
}

bool has_panel_files(const std::filesystem::path& directory) {
  return base::exists(directory / kPanelIndex);
}

std::string panel_file_name(int64_t rank, int64_t tp) {
  return fmt::format("panels-{}-of-{}.safetensors", rank, tp);
}

void write_panel_index(const std::filesystem::path& directory, const PanelOptions& options) {
  nlohmann::ordered_json out{
      {"format", kPanelFormat}, {"version", kPanelVersion}, {"tp", options.tp}, {"dtype", options.dtype}};
  const auto put = [&](const char* name, const auto& value) {
    out[name] = value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  put("quantize", options.quantize);
  put("group_size", options.group_size);
  put("head", options.head);
  base::write_text(directory / kPanelIndex, out.dump() + "\n");
}

PanelOptions check_panel_files(const std::filesystem::path& directory) {
  PanelOptions options = read_panel_index(directory);
  for (int64_t rank = 0; rank < options.tp; ++rank)
    io::SafetensorsFile(directory / panel_file_name(rank, options.tp));
  return options;
}

}  // namespace shardwise::checkpoint
