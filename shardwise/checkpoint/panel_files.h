// Panel files: a rank's weights in the layout that products read (docs/adr/0023), mapped at a load instead of
// read and packed.
//
//   shardwise.panels.json, config.json, tokenizer, …
//   panels-0-of-2.safetensors   for each parameter of rank 0 <name>, or if it is packed
//                                 <name>.panels        [panels, words of 8 bytes]
//                                 <name>.layout        bits, whether it has zero points, lines of each group
//                                 <name>.column_order  unless its columns are in order
//
// They serve inference with one tp size, dtype and quantization. Processes that map the same file share its
// memory, the page cache.
#pragma once
#include <filesystem>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/panel_index.h"
#include "shardwise/checkpoint/shard.h"

namespace shardwise::checkpoint {

/// Collective. Writes `out`: `weights`, which were loaded from `in` with `options`, as one file for each
/// rank, and copies of config.json and the tokenizer and generation files. `out` appears only when it is
/// complete. `on_progress` is about this rank's file. Errors: on every rank, c10::ValueError if `out` exists
/// or its parent does not; base::FileError if a write fails. Leaves no files behind on an error.
WriteSummary write_panel_files(const std::filesystem::path& in, const std::filesystem::path& out,
                               const model::DecoderWeights& weights, const PanelOptions& options,
                               const OnProgress& on_progress);

/// Collective. Maps this rank's packed weights, read-only, and reads its other ones. The file must not change
/// while it is mapped: reading beyond the end of a truncated one ends the process by SIGBUS.
/// Errors: base::CollectiveError on every rank, naming file, tensor and rule, also if this processor packs
/// other weights than the one that wrote the files.
LoadStats map_panel_files(const std::filesystem::path& directory, const model::DecoderWeights& weights);

}  // namespace shardwise::checkpoint
