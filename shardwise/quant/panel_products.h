// What products with a packed weight share.
#pragma once
#include <c10/util/FunctionRef.h>

#include "shardwise/quant/panels.h"

namespace shardwise::quant {

/// Returns `x` [m, width] in the order of the panels' columns, [m, layout.columns()], with zeros in padding.
at::Tensor in_panel_order(const at::Tensor& x, const Panels& w, at::ScalarType dtype);

/// Returns the first byte of a panel.
const uint8_t* panel_of(const Panels& w, int64_t panel);

/// Stores the products of some rows with one panel, [rows, 64], in its columns of y.
void store_panel(const at::Tensor& y, const base::Range& rows, const float* products, int64_t panel);

/// Calls f(begin, end) in parallel for ranges that partition the panels.
void for_panel_ranges(const Panels& w, c10::function_ref<void(int64_t begin, int64_t end)> f);

}  // namespace shardwise::quant
