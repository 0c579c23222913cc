// Products with a packed weight.
//
// A few rows are multiplied with quantized values as they are read, more rows with blocks of values
// dequantized to the dtype of `x`. Few rows of bf16 or fp16 are rounded to 16 bits per run of columns
// (kernels/panel_rows_vnni.h, panel_rows_int8_amx.h, panel_rows_int16_isa.h). With AVX512-BF16 or AMX, more
// rows of bf16, and all with bf16 weights, are multiplied with values in bf16 (bf16_product.h). With
// Format::int8_activations, rows of any number and dtype are rounded to int8 per run of columns and
// multiplied with quantized values.
#pragma once
#include <string>

#include "shardwise/quant/panels.h"

namespace shardwise::quant {

/// Returns whether the processor multiplies with Format::int8_activations.
bool can_round_activations();

/// Computes y = x Wᵀ. Results depend on the number of rows and the instruction set, not on threads. Shapes:
/// `x` [m, width], `y` [m, rows] contiguous, of one dtype. Cost: up to 4 MB of scratch (128 MB on other
/// devices than the CPU), or 64 rows of W. Errors: c10::ValueError if shapes or dtypes do not match, or the
/// processor cannot round activations as the format says.
void product_out(at::Tensor& y, const at::Tensor& x, const Panels& w);

/// Returns what product_out uses for these operands, for output: "packed, avx512_vnni",
/// "int8 activations, avx512_vnni", "packed, amx", "dequantized, avx512_bf16" or "dequantized, " and the name
/// of the dense product.
std::string product_name(const at::Tensor& x, const Panels& w);

/// Returns up to how many rows of x in `dtype` have the bits that each row has alone.
int64_t rows_with_equal_bits(at::ScalarType dtype, const Panels& w);

/// Looks up rows of a vocabulary shard: y[i] = row ids[i] − begin of W, or zeros if W does not contain that
/// row. Shapes: `ids` [...] int64, `y` [..., width] contiguous.
void embedding_out(at::Tensor& y, const at::Tensor& ids, const Panels& w, int64_t begin);

}  // namespace shardwise::quant
