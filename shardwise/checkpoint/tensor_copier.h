// Copies ranges of tensors from file to file in blocks of a few megabytes and reports progress.
#pragma once
#include <functional>
#include <vector>

#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/io/writer.h"

namespace shardwise::checkpoint {

/// A callback that is called after every block with the bytes written so far and in total. An exception that
/// it throws cancels the operation.
using OnProgress = std::function<void(int64_t done_bytes, int64_t all_bytes)>;

/// Copies tensors between safetensors files. Cost: a buffer of 8 MB.
class TensorCopier {
 public:
  /// `on_progress` outlives this.
  explicit TensorCopier(const OnProgress& on_progress) : on_progress_(on_progress) {}

  /// Adds the data bytes of a file to be written to the total.
  void add_to_total(const io::FileLayout& layout) { all_bytes_ += layout.total_bytes - layout.header_bytes; }
  int64_t all_bytes() const { return all_bytes_; }
  /// Reports that `bytes` more have been written.
  void report_written(int64_t bytes);

  /// Copies the range `from` of its tensor along `dim` to [from.begin, from.begin + from.size) of `to`.
  void copy(const TensorSource& from, const io::SafetensorsWriter& file, const io::TensorInfo& to,
            int64_t dim);
  /// Copies all bytes of a tensor of any dtype and shape.
  void copy_full(const TensorSource& from, const io::SafetensorsWriter& file, const io::TensorInfo& to);

 private:
  const OnProgress& on_progress_;
  std::vector<char> buffer_;
  int64_t done_bytes_ = 0, all_bytes_ = 0;
};

}  // namespace shardwise::checkpoint
