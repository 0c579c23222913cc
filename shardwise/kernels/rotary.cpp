#include "shardwise/kernels/rotary.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/head_parts.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

/// Calls f(part, first row, extent) for each of q, k and v and each range of rows.
template <class F>
void for_parts(const Qkv& qkv, F f) {
  const std::vector<HeadPart> parts = parts_of(qkv);
  for_ranges(qkv.q.size(2), work_per_row(qkv), [&](int64_t begin, int64_t end) {
    for (const HeadPart& part : parts) f(part, begin, extent_of(part.heads, end - begin));
  });
}

}  // namespace

RotaryTables rotary_tables(const std::vector<double>& inverse_frequencies, int64_t positions,
                           at::ScalarType dtype) {
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kDouble,
                    "rotary_tables: dtype must be fp32 or fp64; got ", dtype, " [SW0423]");
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

void check_valid_rows(const char* op, const std::vector<base::Range>& valid, int64_t s, int64_t b) {
  if (valid.empty()) return;
  TORCH_CHECK_VALUE(static_cast<int64_t>(valid.size()) == b, op,
                    ": valid rows must be empty or given for each of the ", b, " sequences; got ",
                    valid.size(), " [SW0424]");
  for (const base::Range& rows : valid) {
    TORCH_CHECK_VALUE(0 <= rows.begin && rows.begin <= rows.end && rows.end <= s, op,
                      ": valid rows must be in [0, ", s, "]; got ", rows.begin, " to ", rows.end,
                      " [SW0425]");
  }
}

Qkv split_rotary(const at::Tensor& qkv_any, const HeadSplit& split) {
  const base::ProfiledOp profiled("rotary");
  const at::Tensor qkv = qkv_any.contiguous();
  check_qkv("split_rotary", qkv, split);
  const int64_t d = split.head_dim;
  const Qkv result = {empty_heads(qkv, split.heads, d), empty_heads(qkv, split.kv_heads, d),
                      empty_heads(qkv, split.kv_heads, d)};
  if (const auto* device = device_of("split_rotary", qkv, split.tables.cos, split.tables.sin)) {
    device->split_rotary(result, qkv, split);
    return result;
  }
  const PositionAngles angles(split);
  with_element_type("split_rotary", qkv, [&]<class T>(T) {
    const auto loops = rotary_loops<T>();
    const HeadStrides from_strides = token_strides(qkv, d);
    for_parts(result, [&](const HeadPart& part, int64_t row, HeadExtent extent) {
      const HeadStrides to_strides = strides_of(part.heads);
      T* to = elements_<T>(part.heads) + row * to_strides.row;
      const T* from = elements<T>(qkv) + row * from_strides.row + part.first_feature;
      if (!part.is_rotated) return loops.copy(to, to_strides, from, from_strides, extent);
      loops.rotate(to, to_strides, from, from_strides, extent, angles.from<Accumulator<T>>(row),
                   /*direction=*/1);
    });
  });
  return result;
}

at::Tensor split_rotary_backward(const Qkv& grads_any, const HeadSplit& split) {
  const base::ProfiledOp profiled("rotary_backward");
  check_grads("split_rotary_backward", grads_any, split);
  const Qkv grads = with_contiguous_heads(grads_any);
  const int64_t b = grads.q.size(0), s = grads.q.size(2), d = split.head_dim;
  const at::Tensor d_qkv = at::empty({s, b, (split.heads + 2 * split.kv_heads) * d}, grads.q.options());
  if (const auto* device =
          device_of("split_rotary_backward", grads.q, grads.k, grads.v, split.tables.cos, split.tables.sin)) {
    device->split_rotary_backward(d_qkv, grads, split);
    return d_qkv;
  }
  const PositionAngles angles(split);
  with_element_type("split_rotary_backward", d_qkv, [&]<class T>(T) {
    const auto loops = rotary_loops<T>();
    const HeadStrides to_strides = token_strides(d_qkv, d);
    for_parts(grads, [&](const HeadPart& part, int64_t row, HeadExtent extent) {
      const HeadStrides from_strides = strides_of(part.heads);
      T* to = elements_<T>(d_qkv) + row * to_strides.row + part.first_feature;
      const T* from = elements<T>(part.heads) + row * from_strides.row;
      if (!part.is_rotated) return loops.copy(to, to_strides, from, from_strides, extent);
      loops.rotate(to, to_strides, from, from_strides, extent, angles.from<Accumulator<T>>(row),
                   /*direction=*/-1);
    });
  });
  return d_qkv;
}

}  // namespace shardwise::kernels
