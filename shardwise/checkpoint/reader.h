// Reading one checkpoint directory: finding a tensor, checking what its header says, taking a rank's slice of
// it.
#pragma once
#include <filesystem>
#include <vector>

#include "shardwise/checkpoint/agreement.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/model/config_quantization.h"

namespace shardwise::checkpoint {

/// Errors: c10::ValueError naming file and tensor unless it is there with this `shape` and a type of what it
/// `holds`.
void check_weight(const WeightFiles& files, const std::string& name, const std::vector<int64_t>& shape,
                  model::Holds holds);

/// Errors: c10::ValueError naming file and tensor unless the files hold the config's weights, and nothing
/// else but what older exporters wrote beside them.
void check_weights(const WeightFiles& files, const model::Config& config);

/// The optimizer's file. Errors: c10::ValueError when there is none, with the way to do without.
io::SafetensorsFile open_state(const std::filesystem::path& directory);
/// The optimizer's tensor, checked. Errors: c10::ValueError unless it is there, of this shape, fp32 or fp64.
const io::TensorInfo& find_state(const io::SafetensorsFile& file, const std::string& name,
                                 const std::vector<int64_t>& shape);
/// One of the progress's numbers. Errors: c10::ValueError unless it is there and, but for the seed, not
/// negative.
int64_t read_progress(const io::SafetensorsFile& file, const std::string& name);

/// Reads what `rank` holds of `entry`, and no other byte, from the `parts` that make up its whole tensor (for
/// a reader of its own file: its slice) into its place in entry.local, converting the dtype. A number that is
/// not finite there is one of the `mistakes`, naming file and tensor. Cost: one read a run of the slice or a
/// MB of it, so one a row of a column slice; of memory nothing where dtype and order are the file's, else
/// 1 MB, or a row where one is longer.
void read_entry(const Entry& entry, const std::vector<Source>& parts, int rank, ValidationErrors& mistakes);

}  // namespace shardwise::checkpoint
