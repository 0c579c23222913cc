#include "shardwise/kernels/qk_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/block_sums.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/head_parts.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

void check_norm(const char* op, const QkNormParams& norm, const HeadSplit& split, at::ScalarType dtype) {
  check_output(op, "weight of q", norm.weights.q, {split.head_dim}, dtype);
  check_output(op, "weight of k", norm.weights.k, {split.head_dim}, dtype);
}

void check_weight_grads(const char* op, const QkNormWeights& grads, const HeadSplit& split,
                        at::ScalarType dtype) {
  for (const at::Tensor& grad : {grads.q, grads.k}) {
    if (grad.defined()) check_output(op, "weight_grad", grad, {split.head_dim}, accumulator_type(dtype));
  }
}

at::TensorOptions accumulating(const at::Tensor& qkv) {
  return qkv.options().dtype(accumulator_type(qkv.scalar_type()));
}

// Returns the values v in `qkv` [s, b, features] as a view [b, k, s, d].
at::Tensor values_of(const at::Tensor& qkv, const HeadSplit& split) {
  const int64_t begin = (split.heads + split.kv_heads) * split.head_dim;
  return qkv.narrow(2, begin, split.kv_heads * split.head_dim)
      .view({qkv.size(0), qkv.size(1), split.kv_heads, split.head_dim})
      .permute({1, 2, 0, 3});
}

template <class T>
void copy_values_(const at::Tensor& d_qkv, const Qkv& grads, int64_t row, int64_t rows) {
  const HeadPart part = parts_of(grads)[2];
  const HeadStrides to_strides = token_strides(d_qkv, grads.v.size(3)), from_strides = strides_of(grads.v);
  rotary_loops<T>().copy(elements_<T>(d_qkv) + row * to_strides.row + part.first_feature, to_strides,
                         elements<T>(grads.v) + row * from_strides.row, from_strides,
                         extent_of(grads.v, rows));
}

}  // namespace

Qkv split_norm_rotary(const at::Tensor& qkv_any, const HeadSplit& split, const QkNormParams& norm) {
  const base::ProfiledOp profiled("qk_norm_rotary");
  const at::Tensor qkv = qkv_any.contiguous();
  check_qkv("split_norm_rotary", qkv, split);
  check_norm("split_norm_rotary", norm, split, qkv.scalar_type());
  const int64_t d = split.head_dim;
  const Qkv result = {empty_heads(qkv, split.heads, d), empty_heads(qkv, split.kv_heads, d),
                      values_of(qkv, split)};
  if (const auto* device = device_of("split_norm_rotary", qkv, split.tables.cos, split.tables.sin,
                                     norm.weights.q, norm.weights.k)) {
    device->split_norm_rotary(result, qkv, split, norm);
    return result;
  }
  const std::vector<HeadPart> parts = parts_of(result);
  const PositionAngles angles(split);
  with_element_type("split_norm_rotary", qkv, [&]<class T>(T) {
    using A = Accumulator<T>;
    const HeadStrides from_strides = token_strides(qkv, d);
    for_ranges(qkv.size(0), work_per_row(result), [&](int64_t begin, int64_t end) {
      const at::Tensor scratch = at::empty({d}, accumulating(qkv));
      const auto normalize = [&](const HeadPart& part, const at::Tensor& weight) {
        const HeadStrides to_strides = strides_of(part.heads);
        rotary_loops<T>().norm_rotate(elements_<T>(part.heads) + begin * to_strides.row, to_strides,
                                      elements<T>(qkv) + begin * from_strides.row + part.first_feature,
                                      from_strides, extent_of(part.heads, end - begin), angles.from<A>(begin),
                                      {elements<T>(weight), norm.eps}, elements_<A>(scratch));
      };
      normalize(parts[0], norm.weights.q);
      normalize(parts[1], norm.weights.k);
    });
  });
  return result;
}

at::Tensor split_norm_rotary_backward(const Qkv& grads_any, const at::Tensor& qkv_any, const HeadSplit& split,
                                      const QkNormParams& norm, const QkNormWeights& weight_grads_) {
  const base::ProfiledOp profiled("qk_norm_rotary_backward");
  const at::Tensor qkv = qkv_any.contiguous();
  check_qkv("split_norm_rotary_backward", qkv, split);
  check_grads("split_norm_rotary_backward", grads_any, split);
  check_norm("split_norm_rotary_backward", norm, split, qkv.scalar_type());
  check_weight_grads("split_norm_rotary_backward", weight_grads_, split, qkv.scalar_type());
  const Qkv grads = with_contiguous_heads(grads_any);
  const at::Tensor d_qkv = at::empty_like(qkv);
  if (const auto* device =
          device_of("split_norm_rotary_backward", qkv, grads.q, grads.k, grads.v, split.tables.cos,
                    split.tables.sin, norm.weights.q, norm.weights.k, weight_grads_.q, weight_grads_.k)) {
    device->split_norm_rotary_backward(d_qkv, weight_grads_, grads, qkv, split, norm);
    return d_qkv;
  }
  const int64_t s = qkv.size(0), b = qkv.size(1), d = split.head_dim;
  const int64_t block_positions = std::max<int64_t>(1, kBlockRows / std::max<int64_t>(1, b));  // of b rows
  const int64_t blocks = blocks_of(s, block_positions);
  const PositionAngles angles(split);
  const std::vector<HeadPart> parts = parts_of(grads);
  const BlockSums q_sums(weight_grads_.q, blocks), k_sums(weight_grads_.k, blocks);
  with_element_type("split_norm_rotary_backward", qkv, [&]<class T>(T) {
    using A = Accumulator<T>;
    const HeadStrides x_strides = token_strides(qkv, d);
    for_ranges(blocks, block_positions * work_per_row(grads), [&](int64_t begin, int64_t end) {
      const at::Tensor scratch = at::empty({d}, accumulating(qkv));
      for (int64_t block = begin; block < end; ++block) {
        const int64_t row = block * block_positions, rows = std::min(block_positions, s - row);
        const auto normalize_back = [&](const HeadPart& part, const at::Tensor& weight, A* weight_grad) {
          const int64_t x = row * x_strides.row + part.first_feature;
          rotary_loops<T>().norm_rotate_backward(elements_<T>(d_qkv) + x, elements<T>(qkv) + x, x_strides,
                                                 elements<T>(part.heads) + row * part.heads.stride(2),
                                                 strides_of(part.heads), extent_of(part.heads, rows),
                                                 angles.from<A>(row), {elements<T>(weight), norm.eps},
                                                 weight_grad, elements_<A>(scratch));
        };
        normalize_back(parts[0], norm.weights.q, q_sums.block<A>(block));
        normalize_back(parts[1], norm.weights.k, k_sums.block<A>(block));
        copy_values_<T>(d_qkv, grads, row, rows);
      }
    });
  });
  q_sums.accumulate_();
  k_sums.accumulate_();
  return d_qkv;
}

}  // namespace shardwise::kernels
