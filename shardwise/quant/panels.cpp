#include "shardwise/quant/panels.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "shardwise/base/isa.h"
#include "shardwise/kernels/panel_lines_bf16.h"
#include "shardwise/kernels/panel_values_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/quant/device_matrix.h"
#include "shardwise/quant/mapped_rows.h"

namespace shardwise::quant {

using at::Tensor;
using base::Range;
using kernels::elements;
using kernels::elements_;
using kernels::kPanelLineBytes;
using kernels::kPanelOutputs;
using kernels::PanelLayout;
using kernels::PanelRun;
using kernels::PanelShape;

namespace {

int64_t group_size_of(const Format& format, int64_t in_features) {
  return format.group_size == 0 ? in_features : format.group_size;
}

/// Returns how many columns of each local group the shard has, with groups in order.
std::vector<int64_t> columns_of_groups(const Format& format, int64_t in_features, const Range& columns) {
  const int64_t size = group_size_of(format, in_features);
  const Range groups = base::blocks_of(columns, std::max<int64_t>(size, 1));
  std::vector<int64_t> counts;
  for (int64_t group = groups.begin; group < groups.end; ++group) {
    counts.push_back(std::min((group + 1) * size, columns.end) - std::max(group * size, columns.begin));
  }
  return counts;
}

/// Returns the column of each position, for groups of `counts` columns that take `columns` in order: padding
/// follows each group. Undefined if there is no padding and the columns are 0, 1, 2, ….
Tensor order_of(const std::vector<int64_t>& counts, const std::vector<int32_t>& columns, int64_t bits) {
  const int64_t per_line = 32 / bits, width = std::ssize(columns);
  std::vector<int32_t> order;
  auto next = columns.begin();
  for (const int64_t count : counts) {
    order.insert(order.end(), next, next + count);
    next += count;
    const int64_t padding = (per_line - count % per_line) % per_line;
    order.insert(order.end(), static_cast<size_t>(padding), static_cast<int32_t>(width));
  }
  const bool is_in_order = std::ssize(order) == width && std::ranges::is_sorted(columns);
  if (is_in_order) return {};
  const Tensor tensor = at::empty({std::ssize(order)}, at::kInt);
  std::ranges::copy(order, elements_<int32_t>(tensor));
  return tensor;
}

std::vector<int32_t> ascending(int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) numbers[size_t(i)] = static_cast<int32_t>(i);
  return numbers;
}

/// The scale, the zero point and the quantized values of one row of a matrix.
class RowReader {
 public:
  RowReader(const Matrix& matrix, int64_t row)
      : bits_(matrix.format.bits),
        first_value_(matrix.columns.begin - matrix.words().begin * matrix.format.values_per_word()),
        qweight_(elements<uint8_t>(matrix.qweight) + row * matrix.qweight.size(1) * 4),
        scales_(elements<float>(matrix.scales) + row * matrix.scales.size(1)),
        zero_points_(elements<uint8_t>(matrix.zero_points) + row * matrix.zero_points.size(1)) {}

  float scale(int64_t group) const { return scales_[group]; }
  uint8_t zero_point(int64_t group) const { return zero_points_[group]; }
  /// Unpacks `count` values to a byte each.
  void unpack(uint8_t* to, int64_t count) const {
    if (bits_ == 8) {
      std::copy_n(qweight_ + first_value_, count, to);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = first_value_ + i;
      to[i] = qweight_[at / 2] >> (at % 2 * 4) & 15;
    }
  }

 private:
  int64_t bits_, first_value_;
  const uint8_t* qweight_;
  const float* scales_;
  const uint8_t* zero_points_;
};

/// Packs rows of a matrix. `groups` are the matrix's groups in the order of the layout's.
class RowPacker {
 public:
  RowPacker(const Panels& panels, const Matrix& matrix)
      : panels_(panels),
        matrix_(matrix),
        shape_(panels.layout.shape()),
        values_(static_cast<size_t>(panels.width()) + 1),
        ordered_(static_cast<size_t>(panels.layout.columns())) {}

  /// Packs the matrix's row `row` as the panels' row `to`.
  void pack(int64_t row, int64_t to) {
    const RowReader reader(matrix_, row);
    reader.unpack(values_.data(), panels_.width());
    uint8_t* panel = elements_<uint8_t>(panels_.data) + to / kPanelOutputs * panels_.layout.panel_bytes();
    put_values(panel, to % kPanelOutputs);
    put_headers(panel, to % kPanelOutputs, reader);
  }

 private:
  const uint8_t* ordered() {
    if (!panels_.column_order.defined()) return values_.data();
    const auto* order = elements<int32_t>(panels_.column_order);
    for (size_t k = 0; k < ordered_.size(); ++k) ordered_[k] = values_[size_t(order[k])];
    return ordered_.data();
  }

  void put_values(uint8_t* panel, int64_t output) {
    const uint8_t* from = ordered();
    const auto four = [&] {
      uint32_t word;
      std::memcpy(&word, from, sizeof(word));
      from += sizeof(word);
      return word;
    };
    for (const PanelRun& run : std::span(shape_.runs, size_t(shape_.run_count))) {
      uint8_t* to = panel + run.begin + 4 * output;
      for (int64_t line = 0; line < run.lines; ++line, to += kPanelLineBytes) {
        uint32_t word = four();
        if (shape_.bits == 4) word |= four() << 4;
        std::memcpy(to, &word, sizeof(word));
      }
    }
  }

  /// The group of the first column of a run is the run's.
  void put_headers(uint8_t* panel, int64_t output, const RowReader& reader) {
    int64_t position = 0;
    for (const PanelRun& run : std::span(shape_.runs, size_t(shape_.run_count))) {
      const int64_t group = group_of(position);
      const c10::Half scale(reader.scale(group));
      TORCH_INTERNAL_ASSERT(static_cast<float>(scale) == reader.scale(group), "scale ", reader.scale(group));
      std::memcpy(panel + run.header + 2 * output, &scale, sizeof(scale));
      const uint8_t zero_point = reader.zero_point(group);
      if (shape_.has_zero_points) {
        panel[run.header + 2 * kPanelOutputs + output] = zero_point;
      } else {
        TORCH_INTERNAL_ASSERT(zero_point == shape_.symmetric_zero_point());
      }
      position += run.lines * shape_.columns_per_line();
    }
  }

  /// Returns the matrix's group of the column at a position of the layout.
  int64_t group_of(int64_t position) const {
    const int64_t column =
        panels_.column_order.defined() ? elements<int32_t>(panels_.column_order)[position] : position;
    if (matrix_.group_index.defined()) return elements<int32_t>(matrix_.group_index)[column];
    const int64_t size = group_size_of(matrix_.format, matrix_.in_features);
    const int64_t offset_in_group = matrix_.columns.begin - matrix_.groups().begin * size;
    return (offset_in_group + column) / size;
  }

  const Panels& panels_;
  const Matrix& matrix_;
  PanelShape shape_;
  std::vector<uint8_t> values_, ordered_;
};

}  // namespace

Panels Panels::of(const Format& format, int64_t rows, int64_t in_features, const Range& columns,
                  at::Device device) {
  const auto counts = columns_of_groups(format, in_features, columns);
  const PanelLayout layout(format.bits, format.has_zero_points, counts);
  return {format,
          rows,
          in_features,
          columns,
          layout,
          /*data=*/{},
          order_of(counts, ascending(columns.size()), format.bits),
          /*mapped_rows=*/nullptr,
          device};
}

int64_t Panels::data_bytes() const {
  return PanelLayout::panels(rows) * layout.panel_bytes();
}

int64_t Panels::bytes() const {
  if (!device.is_cpu()) return Matrix::bytes_of(format, rows, in_features, columns);
  const auto order_bytes = static_cast<int64_t>(column_order.defined() ? column_order.nbytes() : 0);
  return data_bytes() + order_bytes;
}

void set_groups_(Panels& panels, const Tensor& group_index) {
  const std::span group(elements<int32_t>(group_index), size_t(panels.width()));
  std::vector<int32_t> columns = ascending(panels.width());
  std::ranges::stable_sort(columns, {}, [&](int32_t column) { return group[size_t(column)]; });
  std::vector<int64_t> counts;
  for (size_t i = 0; i < columns.size(); ++i) {
    const bool is_next = i == 0 || group[size_t(columns[i])] != group[size_t(columns[i - 1])];
    if (is_next) counts.push_back(0);
    ++counts.back();
  }
  panels.layout = PanelLayout(panels.format.bits, panels.format.has_zero_points, counts);
  panels.column_order = order_of(counts, columns, panels.format.bits);
  panels.data = Tensor();
}

void allocate_(Panels& panels) {
  if (!panels.device.is_cpu()) {
    panels.matrix =
        Matrix::empty(panels.format, panels.rows, panels.in_features, panels.columns, panels.device);
    return;
  }
  const int64_t panel_bytes = panels.layout.panel_bytes(), whole = panels.rows / kPanelOutputs;
  panels.data = kernels::empty({PanelLayout::panels(panels.rows), panel_bytes}, at::kByte);
  auto* begin = elements_<uint8_t>(panels.data);
  // The last panel has outputs that no row fills.
  std::fill(begin + whole * panel_bytes, begin + panels.data.numel(), uint8_t{0});
}

void pack_rows_(Panels& panels, int64_t begin, const Matrix& matrix) {
  if (panels.matrix) return copy_rows_(*panels.matrix, begin, matrix);
  check_on_cpu("pack", panels);
  check_on_cpu("pack", matrix);
  TORCH_INTERNAL_ASSERT(matrix.columns == panels.columns && matrix.in_features == panels.in_features &&
                        matrix.format == panels.format && panels.format.is_quantized() &&
                        panels.data.defined() && begin + matrix.rows() <= panels.rows);
  const Range touched = base::blocks_of({begin, begin + matrix.rows()}, kPanelOutputs);
  kernels::for_ranges(touched.size(), kPanelOutputs * panels.width(), [&](int64_t first, int64_t last) {
    RowPacker packer(panels, matrix);
    const int64_t from = std::max(begin, (touched.begin + first) * kPanelOutputs);
    const int64_t to = std::min(begin + matrix.rows(), (touched.begin + last) * kPanelOutputs);
    for (int64_t row = from; row < to; ++row) packer.pack(row - begin, row);
  });
}

namespace {

/// Returns `w` [n, width] in the order of the panels' columns, with zeros in padding.
Tensor ordered(const Panels& panels, const Tensor& w) {
  if (!panels.column_order.defined()) return w;
  return at::constant_pad_nd(w, {0, 1}).index_select(1, panels.column_order);
}

/// Packs `count` rows of `columns` bf16 as the outputs [first, first + count) of a panel: blocks of lines, so
/// that the lines stay in the first-level cache while all outputs are written.
void pack_bf16_outputs(uint8_t* panel, int64_t first, const uint8_t* w, int64_t count, int64_t columns) {
  constexpr int64_t kWord = 4, kLines = 16;
  const int64_t lines = columns / 2;
  for (int64_t line = 0; line < lines; line += kLines) {
    const int64_t some = std::min(kLines, lines - line);
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* from = w + i * columns * 2 + line * kWord;
      uint8_t* to = panel + line * kPanelLineBytes + (first + i) * kWord;
      for (int64_t s = 0; s < some; ++s) std::memcpy(to + s * kPanelLineBytes, from + s * kWord, kWord);
    }
  }
}

}  // namespace

void pack_bf16_rows_(Panels& panels, int64_t begin, const Tensor& w) {
  check_on_cpu("pack", panels);
  TORCH_INTERNAL_ASSERT(!panels.format.is_quantized() && w.scalar_type() == at::kBFloat16 && w.dim() == 2 &&
                        w.size(1) == panels.width() && w.is_contiguous() && panels.data.defined() &&
                        begin + w.size(0) <= panels.rows);
  const Tensor rows = ordered(panels, w);
  const int64_t columns = panels.layout.columns(), end = begin + w.size(0);
  const Range touched = base::blocks_of({begin, end}, kPanelOutputs);
  kernels::for_ranges(touched.size(), kPanelOutputs * columns, [&](int64_t first, int64_t last) {
    for (int64_t panel = touched.begin + first; panel < touched.begin + last; ++panel) {
      const int64_t from = std::max(begin, panel * kPanelOutputs),
                    to = std::min(end, (panel + 1) * kPanelOutputs);
      pack_bf16_outputs(elements_<uint8_t>(panels.data) + panel * panels.layout.panel_bytes(),
                        from - panel * kPanelOutputs, elements<uint8_t>(rows) + (from - begin) * columns * 2,
                        to - from, columns);
    }
  });
}

void pack_(Panels& panels) {
  TORCH_INTERNAL_ASSERT(panels.mapped_rows && !panels.column_order.defined() &&
                        base::best_isa() >= base::Isa::avx512_bf16);
  allocate_(panels);
  const uint8_t* const* rows = panels.mapped_rows->rows.data();
  const int64_t columns = panels.layout.columns(), panel_bytes = panels.layout.panel_bytes();
  kernels::for_ranges(panels.data.size(0), kPanelOutputs * columns, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t row = panel * kPanelOutputs;
      kernels::avx512_bf16::pack_lines(elements_<uint8_t>(panels.data) + panel * panel_bytes, rows + row,
                                       std::min(kPanelOutputs, panels.rows - row), /*begin=*/0, columns);
    }
  });
  panels.mapped_rows.reset();
}

std::optional<Format> inference_format(at::ScalarType dtype, int64_t rows, int64_t width) {
  const bool multiplies = dtype == at::kBFloat16 && base::best_isa() >= base::Isa::avx512_bf16;
  const int64_t padding = PanelLayout::panels(rows) * kPanelOutputs - rows;
  if (!multiplies || width % 2 != 0 || 8 * padding > rows) return std::nullopt;
  return Format{.bits = 16};
}

void check_on_cpu(const char* op, const Panels& panels) {
  for (const Tensor& tensor : {panels.data, panels.column_order})
    if (tensor.defined()) kernels::check_on_cpu(op, tensor);
}

namespace {

/// Copies a row of `count` bf16 at any alignment.
template <class T>
void widen_row(T* to, const uint8_t* from, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    base::Bf16 value;
    std::memcpy(&value, from + k * int64_t{sizeof(value)}, sizeof(value));
    to[k] = base::narrow<T>(static_cast<base::Accumulator<T>>(base::widen(value)));
  }
}

}  // namespace

void dequantize_out(Tensor& w, const Panels& panels, const Range& rows) {
  const int64_t width = panels.width(), columns = panels.layout.columns();
  kernels::check_output("dequantize", "w", w, {rows.size(), width}, w.scalar_type());
  if (panels.matrix) return dequantize_on_device(w, *panels.matrix, rows);
  check_on_cpu("dequantize", panels);
  kernels::check_on_cpu("dequantize", w);
  const PanelShape shape = panels.layout.shape();
  const auto* order = panels.column_order.defined() ? elements<int32_t>(panels.column_order) : nullptr;
  kernels::with_element_type("dequantize", w, [&]<class T>(T) {
    kernels::for_ranges(rows.size(), width, [&](int64_t begin, int64_t end) {
      std::vector<T> ordered(static_cast<size_t>(order ? columns : 0));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = rows.begin + i;
        T* to = elements_<T>(w) + i * width;
        if (panels.mapped_rows) {
          widen_row(to, panels.mapped_rows->rows[size_t(row)], width);
          continue;
        }
        const uint8_t* panel =
            elements<uint8_t>(panels.data) + row / kPanelOutputs * panels.layout.panel_bytes();
        kernels::panel_values_loops<T>().dequantize(order ? ordered.data() : to, panel, row % kPanelOutputs,
                                                    shape);
        for (size_t k = 0; k < ordered.size(); ++k)
          if (order[k] < width) to[order[k]] = ordered[k];
      }
    });
  });
}

}  // namespace shardwise::quant
