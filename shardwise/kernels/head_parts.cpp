#include "shardwise/kernels/head_parts.h"

#include <algorithm>

namespace shardwise::kernels {
namespace {

void check_positions(const char* op, const HeadSplit& split, int64_t s, int64_t b, at::ScalarType dtype) {
  const auto& [cos, sin] = split.tables;
  TORCH_CHECK_VALUE(split.head_dim > 0 && cos.dim() == 2 && 2 * cos.size(1) <= split.head_dim, op,
                    ": tables must be [positions, half] with 2·half at most head_dim ", split.head_dim,
                    "; got ", cos.sizes(), " [SW0412]");
  check_output(op, "cos", cos, cos.sizes(), accumulator_type(dtype));
  check_output(op, "sin", sin, cos.sizes(), accumulator_type(dtype));
  const auto check_first = [&](int64_t first) {
    TORCH_CHECK_VALUE(first >= 0 && first + s <= cos.size(0), op, ": positions must be below the tables' ",
                      cos.size(0), "; got ", first, " to ", first + s, " [SW0413]");
  };
  check_first(split.first_position);
  std::ranges::for_each(split.first_positions, check_first);
  TORCH_CHECK_VALUE(
      split.first_positions.empty() || (std::ssize(split.first_positions) == b && split.valid.empty()), op,
      ": first positions must be empty, or those of ", b, " sequences without padding; got ",
      split.first_positions.size(), " [SW0715]");
}

}  // namespace

at::Tensor empty_heads(const at::Tensor& qkv, int64_t heads, int64_t head_dim) {
  return empty({qkv.size(1), heads, qkv.size(0), head_dim}, qkv);
}

PositionAngles::PositionAngles(const HeadSplit& split) : split_(split) {
  for (const int64_t position : split.first_positions) begins_.push_back(split.first_position - position);
  for (const base::Range& rows : split.valid) begins_.push_back(rows.begin);
}

void check_qkv(const char* op, const at::Tensor& qkv, const HeadSplit& split) {
  TORCH_CHECK_VALUE(qkv.dim() == 3 && qkv.size(2) == (split.heads + 2 * split.kv_heads) * split.head_dim, op,
                    ": qkv must be [s, b, (", split.heads, " + 2·", split.kv_heads, ")·", split.head_dim,
                    "]; got ", qkv.sizes(), " [SW0414]");
  check_positions(op, split, qkv.size(0), qkv.size(1), qkv.scalar_type());
  check_valid_rows(op, split.valid, qkv.size(0), qkv.size(1));
}

void check_grads(const char* op, const Qkv& grads, const HeadSplit& split) {
  const auto& [q, k, v] = grads;
  const at::ScalarType dtype = q.scalar_type();
  TORCH_CHECK_VALUE(q.dim() == 4, op, ": dq must be [b, heads, s, d]; got ", q.sizes(), " [SW0415]");
  const int64_t b = q.size(0), s = q.size(2), d = split.head_dim;
  check_tensor(op, "dq", q, {b, split.heads, s, d}, dtype);
  check_tensor(op, "dk", k, {b, split.kv_heads, s, d}, dtype);
  check_tensor(op, "dv", v, {b, split.kv_heads, s, d}, dtype);
  check_positions(op, split, s, b, dtype);
  check_valid_rows(op, split.valid, s, b);
}

}  // namespace shardwise::kernels
