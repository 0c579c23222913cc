#include "shardwise/checkpoint/shard.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "shardwise/base/files.h"
#include "shardwise/checkpoint/companions.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/folders.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/io/slices.h"
#include "shardwise/model/sharding.h"

namespace shardwise::checkpoint {

namespace fs = std::filesystem;
using base::Range;

namespace {

constexpr int64_t kBufferBytes = int64_t{8} << 20;

/// One tensor of a file to be written, and the runs that it is put together from.
struct PlannedTensor {
  io::TensorSpec spec;
  int64_t dim;
  std::vector<Source> sources;
  bool is_kept_whole;
};

struct PlannedFile {
  std::string name;
  std::vector<PlannedTensor> tensors;

  io::Layout layout() const {
    std::vector<io::TensorSpec> specs;
    for (const PlannedTensor& tensor : tensors) specs.push_back(tensor.spec);
    return io::plan_file(specs, {{"format", "pt"}});
  }
};

/// How `tp` ranks cut what the files hold. Errors: those of check_weights.
ShardIndex index_for(const WeightFiles& files, const model::Config& config, int tp) {
  check_weights(files, config);
  ShardIndex index;
  for (int rank = 0; rank < tp; ++rank) index.files.push_back(shard_file_name(rank, tp));
  for (const model::StoredTensor& stored : model::stored_tensors(config, tp)) {
    const std::string name = name_in(files, stored.name, config);
    index.tensors.emplace(name, cut_of(stored, files.find(name).dtype, tp));
  }
  for (const std::string& name : files.names()) {  // the rest is what no rank reads
    const auto whole = files.find(name);
    index.tensors.emplace(name, kept_whole(whole.shape, whole.dtype));
  }
  return index;
}

PlannedTensor planned(const WeightFiles& files, const std::string& name, const Cut& cut, int rank) {
  PlannedTensor tensor{{name, cut.dtype, cut.local_shape(rank)}, cut.dim, {}, cut.is_kept_whole()};
  if (cut.is_kept_whole()) {
    tensor.sources = {files.whole_source(name)};
    return tensor;
  }
  std::vector<base::ShardRule::Piece> pieces;
  int64_t begin = 0;
  for (const Range& run : cut.held[rank]) {
    pieces.push_back({run.begin, begin, run.size()});
    begin += run.size();
  }
  tensor.sources = sources_of(files.parts(name, cut.dim), pieces);
  return tensor;
}

PlannedFile planned(const WeightFiles& files, const ShardIndex& index, int rank) {
  PlannedFile file{index.files[rank], {}};
  for (const auto& [name, cut] : index.tensors) {
    if (cut.is_held_by(rank)) file.tensors.push_back(planned(files, name, cut, rank));
  }
  return file;
}

/// A folder to be written.
struct Plan {
  ShardIndex index;
  bool has_index;  // whole weights need none
  std::vector<PlannedFile> files;
};

/// For `tp` ranks; without: whole, as one rank has them.
Plan plan_for(const WeightFiles& files, const model::Config& config, std::optional<int> tp) {
  Plan plan{index_for(files, config, tp.value_or(1)), tp.has_value(), {}};
  if (!tp) plan.index.files = {kWeightsFile};
  for (int rank = 0; rank < plan.index.tp(); ++rank) plan.files.push_back(planned(files, plan.index, rank));
  return plan;
}

/// Copies blocks and tells of them.
class Copier {
 public:
  explicit Copier(const OnProgress& on_progress) : on_progress_(on_progress) {}

  void expect(const io::Layout& layout) { all_bytes_ += layout.total_bytes - layout.header_bytes; }
  int64_t all_bytes() const { return all_bytes_; }

  /// A run of `size` along `dim`, from one place to another.
  void copy(const Source& from, const io::SafetensorsWriter& file, const io::TensorInfo& to, int64_t dim) {
    const Range source{from.file_begin, from.file_begin + from.size},
        target{from.begin, from.begin + from.size};
    for (const Range& rows : io::block_rows(*from.tensor, dim, source, kBufferBytes)) {
      const io::Block block = io::block_of(*from.tensor, dim, source, rows);
      const int64_t bytes = block.bytes();
      buffer_.resize(bytes);
      io::read_block(*from.file, block, buffer_.data());
      io::write_block(file, io::block_of(to, dim, target, rows), buffer_.data());
      done_bytes_ += bytes;
      on_progress_(done_bytes_, all_bytes_);
    }
  }

  /// All bytes, whatever they mean.
  void copy_whole(const Source& from, const io::SafetensorsWriter& file, const io::TensorInfo& to) {
    const io::TensorInfo source = as_bytes(*from.tensor);
    copy({from.file, &source, 0, 0, source.bytes()}, file, as_bytes(to), /*dim=*/0);
  }

 private:
  static io::TensorInfo as_bytes(io::TensorInfo tensor) {
    tensor.dtype = io::Dtype::U8;
    tensor.shape = {tensor.bytes()};
    return tensor;
  }

  const OnProgress& on_progress_;
  std::vector<char> buffer_;
  int64_t done_bytes_ = 0, all_bytes_ = 0;
};

void write_file(const fs::path& folder, const PlannedFile& planned, Copier& copier) {
  const auto file = io::SafetensorsWriter::create(folder / planned.name, planned.layout());
  for (const PlannedTensor& tensor : planned.tensors) {
    const io::TensorInfo& to = file.layout().find(tensor.spec.name);
    for (const Source& from : tensor.sources) {
      if (tensor.is_kept_whole) {
        copier.copy_whole(from, file, to);
      } else {
        copier.copy(from, file, to, tensor.dim);
      }
    }
  }
  file.sync();
}

/// What belongs to a model beside its weights.
std::vector<std::string> companion_names() {
  std::vector<std::string> names{kConfigFile, kGenerationConfig, kUnnamedTokenizer};
  names.insert(names.end(), std::begin(kTokenizers), std::end(kTokenizers));
  names.insert(names.end(), std::begin(kBesideTokenizer), std::end(kBesideTokenizer));
  return names;
}

void copy_companions(const fs::path& in, const fs::path& out) {
  for (const std::string& name : companion_names()) {
    if (base::exists(in / name)) base::write_text(out / name, base::read_text(in / name));
  }
}

void check_is_new(bool is_new, const std::string& op, const fs::path& target) {
  TORCH_CHECK_VALUE(is_new, op, ": the folder to write must not exist yet; got ", target.string());
}

/// Where `out` will be. Errors: c10::ValueError when something is there, or the folder around it is not.
fs::path free_target(const std::string& op, const fs::path& out) {
  fs::path target = fs::absolute(out).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  check_is_new(fs::symlink_status(target).type() == fs::file_type::not_found, op, target);
  TORCH_CHECK_VALUE(base::is_folder(target.parent_path()), op,
                    ": the folder to write must lie in a folder; got ", target.string());
  return target;
}

/// All files under `folder`. Returns the bytes of their slices.
int64_t write_all(const fs::path& in, const fs::path& folder, const Plan& plan,
                  const OnProgress& on_progress) {
  Copier copier(on_progress);
  for (const PlannedFile& file : plan.files) copier.expect(file.layout());
  copy_companions(in, folder);
  if (plan.has_index) base::write_text(folder / kShardIndex, to_json(plan.index));
  for (const PlannedFile& file : plan.files) write_file(folder, file, copier);
  on_progress(copier.all_bytes(), copier.all_bytes());  // the last chance to give up
  return copier.all_bytes();
}

/// Under a temporary name, which ends with the work.
Written write_folder(const std::string& op, const fs::path& in, const fs::path& out, std::optional<int> tp,
                     const OnProgress& on_progress) {
  const fs::path target = free_target(op, out);
  const model::Config config = model::load_config(in);
  const WeightFiles files(in, config);
  const Plan plan = plan_for(files, config, tp);
  remove_stale_beside(target);
  const fs::path path = temporary_beside(target, getpid());
  TemporaryFolder folder(path);
  const int64_t bytes = write_all(in, path, plan, on_progress);
  check_is_new(folder.publish_new(target), op, target);  // still
  return {plan.index.files, static_cast<int64_t>(plan.index.tensors.size()), bytes};
}

}  // namespace

Written shard(const fs::path& in, const fs::path& out, int tp, const OnProgress& on_progress) {
  return write_folder("shard", in, out, tp, on_progress);
}

Written merge(const fs::path& in, const fs::path& out, const OnProgress& on_progress) {
  return write_folder("merge", in, out, /*tp=*/std::nullopt, on_progress);
}

}  // namespace shardwise::checkpoint
