// One rank's shard of a packed weight [out, in], in the layout that products read (kernels/panel_shape.h,
// docs/adr/0023): quantized, or in bf16.
//
// A Matrix holds quantized rows as files and quantization produce them; pack_rows_ moves them into panels.
// Columns are stored in the order of their groups, so that groups in any order (GPTQ's act-order) and groups
// that begin on another rank are as fast as others. Rows of bf16 can stay in mapped files until pack_ packs
// them: products then pack parts of them in the cache, and have the same bits.
#pragma once
#include <memory>
#include <optional>

#include "shardwise/kernels/panels.h"
#include "shardwise/quant/matrix.h"

namespace shardwise::quant {

struct MappedRows;  // mapped_rows.h

/// A shard of a packed weight. On other devices than the CPU it is not in panels: their kernels read rows as
/// files have them.
struct Panels {
  Format format;                // bits and grouping
  int64_t rows;                 // output features
  int64_t in_features;          // columns of the unsharded weight
  base::Range columns;          // the columns of this shard
  kernels::PanelLayout layout;  // of each panel
  at::Tensor data;  // [panels, layout.panel_bytes()] uint8; undefined until allocate_, and with mapped_rows
  at::Tensor column_order;  // [layout.columns()] int32: the shard's column, or width() for padding; undefined
                            // if columns are in order without padding
  std::shared_ptr<const MappedRows> mapped_rows = nullptr;  // of bf16 that is not packed yet
  at::Device device = at::kCPU;                             // where products are computed
  std::optional<Matrix> matrix = {};  // instead of `data` on other devices than the CPU, from allocate_ on

  /// Describes panels, without memory for their data. With Grouping::by_column the layout is that of groups
  /// in order until set_groups_ tells the real one.
  static Panels of(const Format& format, int64_t rows, int64_t in_features, const base::Range& columns,
                   at::Device device = at::kCPU);

  /// Returns the number of columns of this shard.
  int64_t width() const { return columns.size(); }
  /// Returns the bytes of `data`, allocated or not.
  int64_t data_bytes() const;
  /// Returns the bytes of all tensors.
  int64_t bytes() const;
};

/// Lays out the columns by their groups, [width] int32, without memory for the data. For Grouping::by_column.
void set_groups_(Panels& panels, const at::Tensor& group_index);

/// Allocates memory for the data. Rows are uninitialized until they are packed.
void allocate_(Panels& panels);

/// Packs all rows of `matrix`, whose scales are fp16 numbers, as the rows [begin, begin + matrix.rows()) of
/// `panels`, which are allocated. Errors: TORCH_INTERNAL_ASSERT if the shards differ or a scale is none.
void pack_rows_(Panels& panels, int64_t begin, const Matrix& matrix);

/// Packs the rows of `w` as the rows [begin, begin + n) of bf16 panels, which are allocated. Shapes:
/// `w` [n, width] bf16, contiguous. Errors: TORCH_INTERNAL_ASSERT if shapes or formats differ.
void pack_bf16_rows_(Panels& panels, int64_t begin, const at::Tensor& w);

/// Packs the mapped rows of `panels`, and lets go of their files. For processors with AVX512-BF16.
void pack_(Panels& panels);

/// Returns the format in which inference packs a dense shard [rows, width] of `dtype`, or nullopt where a
/// tensor serves as well. bf16 is packed if the processor has AVX512-BF16, a row needs no padding, and all
/// rows need at most an eighth.
std::optional<Format> inference_format(at::ScalarType dtype, int64_t rows, int64_t width);

/// Checks that the tensors of `panels` are on the CPU. Errors: c10::ValueError.
void check_on_cpu(const char* op, const Panels& panels);

/// Writes the values of the rows [rows.begin, rows.end) to `w`, computed in fp32 and rounded once.
/// Shapes: `w` [rows, width] contiguous, fp64 (on the CPU), fp32, bf16 or fp16.
/// Errors: c10::ValueError if the shape or dtype does not match, or the tensors are on several devices.
void dequantize_out(at::Tensor& w, const Panels& panels, const base::Range& rows);

}  // namespace shardwise::quant
