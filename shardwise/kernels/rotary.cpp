#include "shardwise/kernels/rotary.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "shardwise/kernels/rotary_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

// q, k or v: where its heads begin in a token's q|k|v features, and whether they are rotated.
struct Part {
  at::Tensor heads;  // [b, heads, s, d]
  int64_t first_feature;
  bool is_rotated;
};

std::vector<Part> parts_of(const Qkv& qkv) {
  const int64_t d = qkv.q.size(3);
  const int64_t k_begin = qkv.q.size(1) * d, v_begin = k_begin + qkv.k.size(1) * d;
  return {{qkv.q, 0, true}, {qkv.k, k_begin, true}, {qkv.v, v_begin, false}};
}

HeadStrides strides_of(const at::Tensor& heads) {
  return {heads.stride(2), heads.stride(0), heads.stride(1)};
}

HeadStrides token_strides(const at::Tensor& qkv, int64_t head_dim) {
  return {qkv.size(1) * qkv.size(2), qkv.size(2), head_dim};
}

void check_positions(const char* op, const RotaryTables& tables, int64_t first, int64_t rows,
                     int64_t head_dim, at::ScalarType dtype) {
  const std::vector<int64_t> shape = {tables.cos.size(0), head_dim / 2};
  check_output(op, "cos", tables.cos, shape, accumulator_type(dtype));
  check_output(op, "sin", tables.sin, shape, accumulator_type(dtype));
  TORCH_CHECK_VALUE(first >= 0 && first + rows <= shape[0], op, ": positions must be below the tables' ",
                    shape[0], "; got ", first, " to ", first + rows);
}

/// f(part, first row, rows) for each of q, k, v and each range of rows.
template <class F>
void for_parts(const Qkv& qkv, F f) {
  const std::vector<Part> parts = parts_of(qkv);
  const int64_t batch = qkv.q.size(0), rows = qkv.q.size(2), d = qkv.q.size(3);
  for_ranges(rows, batch * d * (qkv.q.size(1) + 2 * qkv.k.size(1)), [&](int64_t begin, int64_t end) {
    for (const Part& part : parts) f(part, begin, HeadExtent{end - begin, batch, part.heads.size(1), d});
  });
}

at::Tensor with_contiguous_heads(const at::Tensor& heads) {
  return heads.stride(3) == 1 ? heads : heads.contiguous();
}

}  // namespace

RotaryTables rotary_tables(const std::vector<double>& inverse_frequencies, int64_t positions,
                           at::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kDouble,
                    "rotary_tables: dtype must be fp32 or fp64; got ", dtype);
  const int64_t half = static_cast<int64_t>(inverse_frequencies.size());
  const RotaryTables tables = {at::empty({positions, half}, dtype), at::empty({positions, half}, dtype)};
  with_element_type("rotary_tables", dtype, [&]<class T>(T) {
    using A = Accumulator<T>;
    A* cos = elements_<A>(tables.cos);
    A* sin = elements_<A>(tables.sin);
    for (int64_t position = 0; position < positions; ++position) {
      for (const double frequency : inverse_frequencies) {
        *cos++ = static_cast<A>(std::cos(static_cast<double>(position) * frequency));
        *sin++ = static_cast<A>(std::sin(static_cast<double>(position) * frequency));
      }
    }
  });
  return tables;
}

Qkv split_rotary(const at::Tensor& qkv_any, int64_t heads, int64_t kv_heads, int64_t head_dim,
                 const RotaryTables& tables, int64_t first_position) {
  const at::Tensor qkv = qkv_any.contiguous();
  TORCH_CHECK_VALUE(head_dim > 0 && head_dim % 2 == 0, "split_rotary: head_dim must be even; got ", head_dim);
  TORCH_CHECK_VALUE(qkv.dim() == 3 && qkv.size(2) == (heads + 2 * kv_heads) * head_dim,
                    "split_rotary: qkv must be [s, b, (", heads, " + 2·", kv_heads, ")·", head_dim, "]; got ",
                    qkv.sizes());
  const int64_t s = qkv.size(0), b = qkv.size(1);
  check_positions("split_rotary", tables, first_position, s, head_dim, qkv.scalar_type());
  const Qkv result = {at::empty({b, heads, s, head_dim}, qkv.options()),
                      at::empty({b, kv_heads, s, head_dim}, qkv.options()),
                      at::empty({b, kv_heads, s, head_dim}, qkv.options())};
  with_element_type("split_rotary", qkv.scalar_type(), [&]<class T>(T) {
    const auto loops = rotary_loops<T>();
    const HeadStrides from_strides = token_strides(qkv, head_dim);
    for_parts(result, [&](const Part& part, int64_t row, HeadExtent extent) {
      const HeadStrides to_strides = strides_of(part.heads);
      T* to = elements_<T>(part.heads) + row * to_strides.row;
      const T* from = elements<T>(qkv) + row * from_strides.row + part.first_feature;
      if (!part.is_rotated) return loops.copy(to, to_strides, from, from_strides, extent);
      const int64_t angle = (first_position + row) * (head_dim / 2);
      loops.rotate(to, to_strides, from, from_strides, extent, elements<Accumulator<T>>(tables.cos) + angle,
                   elements<Accumulator<T>>(tables.sin) + angle, /*direction=*/1);
    });
  });
  return result;
}

at::Tensor split_rotary_backward(const Qkv& grads_any, const RotaryTables& tables, int64_t first_position) {
  const Qkv grads = {with_contiguous_heads(grads_any.q), with_contiguous_heads(grads_any.k),
                     with_contiguous_heads(grads_any.v)};
  const int64_t b = grads.q.size(0), heads = grads.q.size(1), s = grads.q.size(2), d = grads.q.size(3);
  const int64_t kv_heads = grads.k.size(1);
  check_tensor("split_rotary_backward", "dk", grads.k, {b, kv_heads, s, d}, grads.q.scalar_type());
  check_tensor("split_rotary_backward", "dv", grads.v, {b, kv_heads, s, d}, grads.q.scalar_type());
  check_positions("split_rotary_backward", tables, first_position, s, d, grads.q.scalar_type());
  const at::Tensor d_qkv = at::empty({s, b, (heads + 2 * kv_heads) * d}, grads.q.options());
  with_element_type("split_rotary_backward", d_qkv.scalar_type(), [&]<class T>(T) {
    const auto loops = rotary_loops<T>();
    const HeadStrides to_strides = token_strides(d_qkv, d);
    for_parts(grads, [&](const Part& part, int64_t row, HeadExtent extent) {
      const HeadStrides from_strides = strides_of(part.heads);
      T* to = elements_<T>(d_qkv) + row * to_strides.row + part.first_feature;
      const T* from = elements<T>(part.heads) + row * from_strides.row;
      if (!part.is_rotated) return loops.copy(to, to_strides, from, from_strides, extent);
      const int64_t angle = (first_position + row) * (d / 2);
      loops.rotate(to, to_strides, from, from_strides, extent, elements<Accumulator<T>>(tables.cos) + angle,
                   elements<Accumulator<T>>(tables.sin) + angle, /*direction=*/-1);
    });
  });
  return d_qkv;
}

}  // namespace shardwise::kernels
