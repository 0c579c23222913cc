// Kernels on quantized weights refuse tensors that are not on the CPU, as those of kernels/ do.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "shardwise/quant/product.h"
#include "shardwise/quant/quantize.h"
#include "tests/kernels/on_other_device.h"

namespace shardwise::quant::device_test {
namespace {

using testing::KernelCall;
using testing::Tensors;

constexpr Format kFormat{.bits = 8, .group_size = 4, .grouping = Grouping::by_column};
constexpr base::Range kColumns{0, 8};

Matrix matrix_of(const Tensors& t, size_t first) {
  return {kFormat, kColumns.size(), kColumns, t[first], t[first + 1], t[first + 2], t[first + 3]};
}

Panels panels_of(const Tensors& t, size_t first) {
  Panels panels = Panels::of(kFormat, 3, kColumns.size(), kColumns);
  panels.data = t[first];
  panels.column_order = t[first + 1];
  return panels;
}

TEST(Device, KernelsRefuseTensorsThatAreNotOnTheCpu) {
  const at::Tensor w = at::zeros({3, 8}), maxima = at::zeros({3, 2});
  const at::Tensor words = at::zeros({3, 2}, at::kInt), zero_points = at::zeros({3, 2}, at::kByte);
  const at::Tensor scales = at::zeros({3, 2}), group_index = at::zeros({8}, at::kInt);
  Panels panels = Panels::of(kFormat, 3, kColumns.size(), kColumns);
  allocate_(panels);
  panels.column_order = at::zeros({8}, at::kInt);
  const KernelCall calls[] = {
      {"dequantize",
       {w, panels.data, panels.column_order},
       [](Tensors& t) {
         dequantize_out(t[0], panels_of(t, 1), {0, 3});
       }},
      {"quantized product",
       {at::zeros({2, 8}), panels.data, panels.column_order},
       [](Tensors& t) {
         at::Tensor y = at::zeros({2, 3});
         product_out(y, t[0], panels_of(t, 1));
       }},
      {"quantize",
       {w, maxima, words, scales, zero_points, group_index},
       [](Tensors& t) {
         Matrix matrix = matrix_of(t, 2);
         quantize_rows_(matrix, 0, t[0], t[1]);
       }},
      {"group_maxima", {w}, [](Tensors& t) { group_maxima(t[0], kFormat, kColumns.size(), kColumns); }},
  };
  for (const KernelCall& call : calls) testing::expect_refused_on_other_device(call);
}

}  // namespace
}  // namespace shardwise::quant::device_test
