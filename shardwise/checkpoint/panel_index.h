// The index of a directory of panel files (panel_files.h): how its weights were loaded before they were
// written.
//
//   shardwise.panels.json   {"format": "shardwise.panels", "version": 1, "tp": 2, "dtype": "bf16",
//                            "quantize": "int4", "group_size": null, "head": null}
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace shardwise::checkpoint {

inline constexpr const char* kPanelIndex = "shardwise.panels.json";

/// The options of the load whose weights the files hold, as flags name them.
struct PanelOptions {
  int64_t tp;
  std::string dtype;                    // fp32 or bf16
  std::optional<std::string> quantize;  // int8 or int4; none: as config.json says
  std::optional<int64_t> group_size;
  std::optional<std::string> head;
};

bool has_panel_files(const std::filesystem::path& directory);
/// Returns a file name such as `panels-0-of-2.safetensors`.
std::string panel_file_name(int64_t rank, int64_t tp);

/// Errors: base::FileError.
void write_panel_index(const std::filesystem::path& directory, const PanelOptions& options);
/// Errors: c10::ValueError naming file, field and rule.
PanelOptions read_panel_index(const std::filesystem::path& directory);
/// Reads the index and the headers of all files. Errors: c10::ValueError naming file, field and rule.
PanelOptions check_panel_files(const std::filesystem::path& directory);

}  // namespace shardwise::checkpoint
