#include "shardwise/quant/product.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/bf16_product.h"
#include "shardwise/kernels/panel_rows_int16_isa.h"
#include "shardwise/kernels/panel_rows_int8_amx.h"
#include "shardwise/kernels/panel_rows_isa.h"
#include "shardwise/kernels/panel_rows_vnni.h"
#include "shardwise/kernels/product.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"
#include "shardwise/quant/bf16_product.h"
#include "shardwise/quant/device_matrix.h"
#include "shardwise/quant/panel_products.h"

namespace shardwise::quant {

namespace amx = kernels::amx;
using at::Tensor;
using base::Isa;
using base::Range;
using kernels::elements;
using kernels::elements_;
using kernels::kPanelOutputs;
using kernels::PanelShape;
using kernels::SplitRows;

namespace {

// --- few rows ----------------------------------------------------------------------------------------------

/// Up to this many rows of bf16 or fp16, products of integers are faster than dequantizing. Without bf16
/// instructions they are for all rows.
constexpr int64_t kMostIntegerRows = 64;

bool multiplies_all_as_integers() {
  return base::best_isa() == Isa::avx512_vnni;
}
/// Up to this many rows, loops that multiply row by row are faster than dequantizing.
constexpr int64_t kMostFp32Rows = 16;

void few_rows_fp32_out(const Tensor& y, const Tensor& x, const Panels& w) {
  const Tensor wide = in_panel_order(x, w, at::kFloat);
  const PanelShape shape = w.layout.shape();
  const auto loops = kernels::panel_rows_loops<float>();
  for_panel_ranges(w, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      float products[kMostFp32Rows * kPanelOutputs];
      loops.multiply(products, elements<float>(wide), wide.size(1), wide.size(0), panel_of(w, panel), shape);
      store_panel(y, {0, y.size(0)}, products, panel);
    }
  });
}

/// The loops that multiply integers: those of AMX, of VNNI, or of int16.
struct IntegerLoops {
  int64_t level_bytes, sum_count;  // of SplitRows
  bool is_tiled;                   // of SplitRows
  int64_t most_rows;               // of one call
  void (*split_bf16)(const SplitRows&, const base::Bf16*, int64_t, int64_t, const PanelShape&);
  void (*split_fp16)(const SplitRows&, const base::Fp16*, int64_t, int64_t, const PanelShape&);
  void (*split_fp32)(const SplitRows&, const float*, int64_t, int64_t, const PanelShape&);
  void (*multiply)(float*, const SplitRows&, int64_t, const uint8_t*, const PanelShape&);
};

/// Returns the instruction set of these loops. AMX has the bits of VNNI, which is as fast for few rows.
Isa integer_isa(int64_t rows) {
  constexpr int64_t kLeastTiledRows = 9;
  const bool is_tiled = base::best_isa() >= Isa::amx && rows >= kLeastTiledRows;
  return is_tiled ? Isa::amx : std::min(base::best_isa(), Isa::avx512_vnni);
}

IntegerLoops integer_loops(const quant::Format& format, int64_t rows) {
  namespace vnni = kernels::avx512_vnni;
  if (base::best_isa() >= Isa::avx512_vnni) {
    const int64_t parts = format.int8_activations ? 1 : 2;
    const bool is_tiled = integer_isa(rows) == Isa::amx;
    return {parts,       parts,       is_tiled,    is_tiled ? amx::kMaxLevelRows : vnni::kMaxRows,
            vnni::split, vnni::split, vnni::split, is_tiled ? amx::multiply_levels : vnni::multiply};
  }
  const auto of_bf16 = kernels::panel_rows_int16_loops<base::Bf16>();
  const auto of_fp16 = kernels::panel_rows_int16_loops<base::Fp16>();
  return {2, 1, false, kernels::kMaxInt16Rows, of_bf16.split, of_fp16.split, nullptr, of_bf16.multiply};
}

/// Returns `columns` with padding: a row's bytes fill an odd number of cache lines. If they were a multiple
/// of 4096, the rows that are multiplied together would compete for one set of the first-level cache.
int64_t padded_columns(int64_t columns, int64_t level_bytes) {
  constexpr int64_t kLine = 64;
  const int64_t lines = base::blocks_of({0, columns * level_bytes}, kLine).size() | 1;
  return lines * kLine / level_bytes;
}

/// Rows rounded to integers, with their memory: one allocation, which counts for few rows.
class IntegerRows {
 public:
  IntegerRows(const Tensor& x, const Panels& w, const IntegerLoops& loops)
      : block_(loops.is_tiled ? kernels::kLevelTileRows : 1) {
    const PanelShape shape = w.layout.shape();
    const int64_t columns =
        loops.is_tiled ? amx::level_columns(shape) : padded_columns(w.layout.columns(), loops.level_bytes);
    const int64_t m = blocks(x.size(0)) * block_, runs = shape.run_count;
    const int64_t level_bytes = base::blocks_of({0, m * loops.level_bytes * columns}, 64).size() * 64,
                  scale_bytes = m * runs * int64_t{sizeof(float)};
    memory_ = kernels::empty({level_bytes + scale_bytes * (1 + loops.sum_count)}, at::kChar);
    auto* levels = elements_<int8_t>(memory_);
    rows_ = {levels,
             reinterpret_cast<float*>(levels + level_bytes),
             reinterpret_cast<int32_t*>(levels + level_bytes + scale_bytes),
             loops.level_bytes,
             loops.sum_count,
             columns,
             runs,
             loops.is_tiled};
    const at::ScalarType dtype = x.scalar_type();
    const Tensor in_order = in_panel_order(x, w, dtype == at::kDouble ? at::kFloat : dtype);
    if (dtype == at::kBFloat16) {
      split(in_order, shape, loops.split_bf16);
    } else if (dtype == at::kHalf) {
      split(in_order, shape, loops.split_fp16);
    } else {
      split(in_order, shape, loops.split_fp32);
    }
  }

  SplitRows from(int64_t row) const { return rows_.from(row); }

 private:
  int64_t blocks(int64_t rows) const { return (rows + block_ - 1) / block_; }

  template <class T>
  void split(const Tensor& x, const PanelShape& shape,
             void (*loop)(const SplitRows&, const T*, int64_t, int64_t, const PanelShape&)) const {
    const int64_t m = x.size(0), columns = x.size(1);
    kernels::for_ranges(blocks(m), block_ * columns, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * block_;
      loop(from(first), elements<T>(x) + first * columns, columns, std::min(end * block_, m) - first, shape);
    });
  }

  int64_t block_;  // rows that are split together
  Tensor memory_;
  SplitRows rows_{};
};

/// Multiplies rounded rows with the quantized values.
void integers_out(const Tensor& y, const Tensor& x, const Panels& w) {
  const PanelShape shape = w.layout.shape();
  const IntegerLoops loops = integer_loops(w.format, y.size(0));
  const IntegerRows rounded(x, w, loops);
  const auto multiply_panel = [&](int64_t panel) {
    float products[amx::kMaxLevelRows * kPanelOutputs];
    for (int64_t row = 0; row < y.size(0); row += loops.most_rows) {
      const Range rows{row, std::min(row + loops.most_rows, y.size(0))};
      loops.multiply(products, rounded.from(row), rows.size(), panel_of(w, panel), shape);
      store_panel(y, rows, products, panel);
    }
  };
  for_panel_ranges(w, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) multiply_panel(panel);
  });
}

// --- many rows, dequantized --------------------------------------------------------------------------------

constexpr int64_t kBlockBytes = int64_t{4} << 20;          // fits a core's share of the last-level cache
constexpr int64_t kDeviceBlockBytes = int64_t{128} << 20;  // a few launches for each weight

/// Depends only on the matrix, so that its product is bitwise the same on every rank.
int64_t rows_per_block(const Panels& w, int64_t itemsize) {
  const int64_t row_bytes = std::max<int64_t>(w.width() * itemsize, 1);
  return std::clamp<int64_t>((w.device.is_cpu() ? kBlockBytes : kDeviceBlockBytes) / row_bytes, kPanelOutputs,
                             std::max(w.rows, kPanelOutputs));
}

/// Dequantizes blocks of rows to the dtype of x and multiplies them like dense weights.
void many_rows_out(Tensor& y, const Tensor& x, const Panels& w) {
  const int64_t step = rows_per_block(w, static_cast<int64_t>(x.itemsize()));
  const Tensor scratch = at::empty({std::min(step, w.rows), w.width()}, x.options());
  for (int64_t row = 0; row < w.rows; row += step) {
    const Range rows{row, std::min(row + step, w.rows)};
    Tensor dense = scratch.narrow(/*dim=*/0, 0, rows.size());
    dequantize_out(dense, w, rows);
    if (rows.size() == w.rows) return kernels::product_out(y, x, dense.t());
    Tensor block = at::empty({x.size(0), rows.size()}, x.options());
    kernels::product_out(block, x, dense.t());
    y.narrow(/*dim=*/1, row, rows.size()).copy_(block);
  }
}

// --- the choice --------------------------------------------------------------------------------------------

enum class Method { integers, few_rows_fp32, bf16, dequantized };

Method method_of(int64_t rows, at::ScalarType dtype, const Panels& w) {
  const bool is_narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  if (w.format.int8_activations) return Method::integers;
  if (w.format.is_quantized()) {
    if (is_narrow) {
      if (rows <= kMostIntegerRows || multiplies_all_as_integers()) return Method::integers;
    } else if (dtype != at::kDouble && rows <= kMostFp32Rows) {
      return Method::few_rows_fp32;
    }
  }
  return dtype == at::kBFloat16 && kernels::has_bf16_products() ? Method::bf16 : Method::dequantized;
}

Method method_of(const Tensor& x, const Panels& w) {
  return method_of(x.size(0), x.scalar_type(), w);
}

}  // namespace

bool can_round_activations() {
  return base::best_isa() >= Isa::avx512_vnni;
}

void product_out(Tensor& y, const Tensor& x, const Panels& w) {
  const base::ProfiledOp profiled("packed_product");
  TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == w.width() && y.dim() == 2 && y.size(0) == x.size(0) &&
                        y.size(1) == w.rows && y.scalar_type() == x.scalar_type() && y.is_contiguous(),
                    "quantized product: needs [m, ", w.width(), "] to [m, ", w.rows,
                    "] contiguous, of one dtype; got ", x.sizes(), " ", x.scalar_type(), " to ", y.sizes(),
                    " ", y.scalar_type(), " [SW0468]");
  TORCH_CHECK_VALUE(!w.format.int8_activations || can_round_activations(),
                    "quantized product: int8 activations need a processor with AVX-512 VNNI; got ",
                    base::name_of(base::best_isa()), " [SW0716]");
  if (y.numel() == 0) return;
  if (w.width() == 0) {
    y.zero_();
    return;
  }
  if (w.matrix)
    return x.size(0) <= kMostDeviceRows ? product_on_device(y, x, *w.matrix) : many_rows_out(y, x, w);
  kernels::check_on_cpu("quantized product", x);
  check_on_cpu("quantized product", w);
  switch (method_of(x, w)) {
    case Method::integers:
      return integers_out(y, x, w);
    case Method::few_rows_fp32:
      return few_rows_fp32_out(y, x, w);
    case Method::bf16:
      return bf16_product_out(y, x, w);
    case Method::dequantized:
      return many_rows_out(y, x, w);
  }
}

std::string product_name(const Tensor& x, const Panels& w) {
  switch (method_of(x, w)) {
    case Method::integers:
      return std::string(w.format.int8_activations ? "int8 activations, " : "packed, ") +
             base::name_of(integer_isa(x.size(0)));
    case Method::few_rows_fp32:
      return std::string("packed, ") + base::name_of(base::loops_isa());
    case Method::bf16:
      return std::string(w.format.is_quantized() ? "dequantized, " : "packed, ") +
             base::name_of(base::best_isa());
    case Method::dequantized:
      return "dequantized, " + kernels::product_name(x, at::empty({w.rows, w.width()}, x.options()).t());
  }
  return "";
}

int64_t rows_with_equal_bits(at::ScalarType dtype, const Panels& w) {
  if (!w.device.is_cpu()) return kMostDeviceRows;
  switch (method_of(/*rows=*/1, dtype, w)) {
    case Method::integers:
      return w.format.int8_activations || multiplies_all_as_integers() ? std::numeric_limits<int64_t>::max()
                                                                       : kMostIntegerRows;
    case Method::few_rows_fp32:
      return kMostFp32Rows;
    case Method::bf16:
      return std::numeric_limits<int64_t>::max();
    case Method::dequantized:
      return 1;
  }
  return 1;
}

void embedding_out(Tensor& y, const Tensor& ids, const Panels& w, int64_t begin) {
  if (w.matrix) return embedding_on_device(y, ids, *w.matrix, begin);
  kernels::check_on_cpu("quantized embedding", ids);
  const Tensor list = ids.reshape({-1}), rows = y.view({list.size(0), w.width()});
  const auto* id = list.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < list.size(0); ++i) {
    Tensor row = rows.narrow(/*dim=*/0, i, 1);
    const int64_t local = id[i] - begin;
    if (local >= 0 && local < w.rows) {
      dequantize_out(row, w, {local, local + 1});
    } else {
      row.zero_();
    }
  }
}

}  // namespace shardwise::quant
