#include "shardwise/quant/panel_products.h"

#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>

#include "shardwise/kernels/panel_store_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::quant {

using kernels::kPanelOutputs;

at::Tensor in_panel_order(const at::Tensor& x, const Panels& w, at::ScalarType dtype) {
  at::Tensor converted = x.to(dtype).contiguous();
  if (!w.column_order.defined()) return converted;
  return at::constant_pad_nd(converted, {0, 1}).index_select(1, w.column_order);
}

const uint8_t* panel_of(const Panels& w, int64_t panel) {
  return kernels::elements<uint8_t>(w.data) + panel * w.layout.panel_bytes();
}

void store_panel(const at::Tensor& y, const base::Range& rows, const float* products, int64_t panel) {
  const int64_t stride = y.size(1), first = panel * kPanelOutputs;
  const int64_t outputs = std::min(kPanelOutputs, stride - first);
  kernels::with_element_type("quantized product", y.scalar_type(), [&]<class T>(T) {
    kernels::panel_store_loops<T>().store(kernels::elements_<T>(y) + rows.begin * stride + first, stride,
                                          products, rows.size(), outputs);
  });
}

void for_panel_ranges(const Panels& w, c10::function_ref<void(int64_t, int64_t)> f) {
  kernels::for_ranges(kernels::PanelLayout::panels(w.rows), kPanelOutputs * w.layout.columns(), f);
}

}  // namespace shardwise::quant
