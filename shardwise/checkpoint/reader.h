// Reads a checkpoint directory: finds a tensor, checks its header and reads a rank's shard of it.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/config/quantization.h"
#include "shardwise/io/safetensors.h"

namespace shardwise::checkpoint {

/// Checks that a weight exists with this `shape` and a dtype of this `element_type`.
/// Errors: c10::ValueError naming file and tensor otherwise.
void check_weight(const WeightFiles& files, const std::string& name, const std::vector<int64_t>& shape,
                  config::ElementType element_type);

/// Checks that the files contain exactly the weights of the config, apart from redundant tensors of older
/// exporters. Errors: c10::ValueError naming file and tensor otherwise.
void check_weights(const WeightFiles& files, const config::Config& config);

/// Opens the optimizer file. Errors: c10::ValueError with a hint if it does not exist.
io::SafetensorsFile open_state(const std::filesystem::path& directory);
/// Returns an optimizer tensor. Errors: c10::ValueError if it does not exist with this shape in fp32 or fp64.
const io::TensorInfo& find_state(const io::SafetensorsFile& file, const std::string& name,
                                 const std::vector<int64_t>& shape);
/// Returns a progress counter. Errors: c10::ValueError if it does not exist or, except for the seed, is
/// negative.
int64_t read_progress(const io::SafetensorsFile& file, const std::string& name);

/// Adds `found`, a NaN or Inf in the tensor `name` of the file `path`, to `errors`. Does nothing for nullopt.
void collect_not_finite(std::optional<double> found, const std::string& path, const std::string& name,
                        ValidationErrors& errors);

/// Reads the rows of an entry that has its whole tensor in `tensor` of `file`. Otherwise as read_entry.
void read_rows(const Entry& entry, const io::SafetensorsFile& file, const io::TensorInfo& tensor, int rank,
               ValidationErrors& errors);

/// Reads the shard of `rank`, and no other byte, into entry.local and converts its dtype. `parts` make up the
/// full tensor, or the rank's shard if it reads its own file. Adds NaN or Inf in the shard to `errors`,
/// naming file and tensor.
/// Cost: one read for each contiguous range of at most 1 MB, so one for each row of a column shard. No memory
/// if dtype and order are the file's, otherwise 1 MB for each thread, or one row if a row is longer.
void read_entry(const Entry& entry, const std::vector<TensorSource>& parts, int rank,
                ValidationErrors& errors);

}  // namespace shardwise::checkpoint
