// Copying runs of tensors from file to file, a few megabytes at a time, and telling of it.
#pragma once
#include <functional>
#include <vector>

#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/io/writer.h"

namespace shardwise::checkpoint {

/// Told after every block what has been written and what there will be in all. What it throws ends the work.
using OnProgress = std::function<void(int64_t done_bytes, int64_t all_bytes)>;

/// Cost: 8 MB.
class Copier {
 public:
  /// `on_progress` outlives this.
  explicit Copier(const OnProgress& on_progress) : on_progress_(on_progress) {}

  void expect(const io::Layout& layout) { all_bytes_ += layout.total_bytes - layout.header_bytes; }
  int64_t all_bytes() const { return all_bytes_; }
  /// So much more has been written.
  void tell(int64_t bytes);

  /// A run of `size` along `dim`, from one place to another.
  void copy(const Source& from, const io::SafetensorsWriter& file, const io::TensorInfo& to, int64_t dim);
  /// All bytes, whatever they mean.
  void copy_whole(const Source& from, const io::SafetensorsWriter& file, const io::TensorInfo& to);

 private:
  const OnProgress& on_progress_;
  std::vector<char> buffer_;
  int64_t done_bytes_ = 0, all_bytes_ = 0;
};

}  // namespace shardwise::checkpoint
