#include "shardwise/checkpoint/map_rows.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/weight_row_reader.h"
#include "shardwise/kernels/finite.h"
#include "shardwise/model/names.h"
#include "shardwise/quant/mapped_rows.h"

namespace shardwise::checkpoint {

using base::MappedFile;

namespace {

/// Rows of a shard at equal distances in a file.
struct RowRun {
  std::string name;  // of the tensor in the file
  const io::SafetensorsFile* file;
  int64_t first, count;    // rows of the shard
  int64_t offset, stride;  // bytes: of the first row in the file, and from a row to the next
};

constexpr int64_t kItemBytes = 2;

/// Returns where a part of a tensor has rows of a shard of `width` columns; nullopt if not in one piece each.
std::optional<RowRun> run_of(const WeightPart& part, int64_t rows, int64_t width) {
  const auto& [name, source, shards_rows, is_transposed] = part;
  const io::TensorInfo& found = *source.tensor;
  if (found.dtype != io::Dtype::BF16 || is_transposed || found.begin % kItemBytes != 0) return {};
  const int64_t stride = found.shape.at(1) * kItemBytes;
  if (shards_rows) {
    if (found.shape[1] != width) return {};
    return RowRun{name,  source.file, source.begin, source.size, found.begin + source.file_begin * stride,
                  stride};
  }
  if (source.begin != 0 || source.size != width) return {};
  return RowRun{name, source.file, 0, rows, found.begin + source.file_begin * kItemBytes, stride};
}

/// Returns where the files have all rows of the shard; nullopt if a row is not in one piece.
std::optional<std::vector<RowRun>> runs_of(const WeightFiles& files, const parallel::Parameter& weight,
                                           const config::Config& stored, int rank) {
  std::vector<RowRun> runs;
  int64_t rows = 0;
  for (const WeightPart& part : weight_parts(files, model::stored_tensors(weight, stored), stored, rank)) {
    const auto run = run_of(part, weight.size(0), weight.size(1));
    if (!run) return {};
    runs.push_back(*run);
    rows += run->count;
  }
  // Rows that are cut in columns would count more than once.
  return rows == weight.size(0) ? std::optional(std::move(runs)) : std::nullopt;
}

}  // namespace

std::shared_ptr<const MappedFile> RowMapper::file(const std::string& path) {
  auto& file = files_[path];
  if (!file) file = std::make_shared<const MappedFile>(path);
  return file;
}

bool RowMapper::map(const WeightFiles& files, const parallel::Parameter& weight, const config::Config& stored,
                    int rank, ValidationErrors& errors) {
  const auto runs = runs_of(files, weight, stored, rank);
  if (!runs) return false;
  quant::MappedRows mapped{std::vector<const uint8_t*>(size_t(weight.size(0))), {}};
  for (const RowRun& run : *runs) {
    const auto source = file(run.file->path());
    const int64_t end = run.offset + (run.count - 1) * run.stride + weight.size(1) * kItemBytes;
    TORCH_CHECK_VALUE(end <= source->size(), run.file->path(), ": must not be truncated; got ",
                      source->size(), " bytes [SW0752]");
    const uint8_t* first = source->data() + run.offset;
    for (int64_t i = 0; i < run.count; ++i) mapped.rows[size_t(run.first + i)] = first + i * run.stride;
    const at::Tensor rows = at::from_blob(const_cast<uint8_t*>(first), {run.count, weight.size(1)},
                                          {run.stride / kItemBytes, 1}, at::kBFloat16);  // only read
    collect_not_finite(kernels::first_nan_or_inf(rows), run.file->path(), run.name, errors);
    if (std::ranges::find(mapped.files, source) == mapped.files.end()) mapped.files.push_back(source);
  }
  mapped_bytes_ += weight.size(0) * weight.size(1) * kItemBytes;
  weight.panels->mapped_rows = std::make_shared<const quant::MappedRows>(std::move(mapped));
  return true;
}

}  // namespace shardwise::checkpoint
