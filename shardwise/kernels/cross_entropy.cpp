#include "shardwise/kernels/cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "shardwise/kernels/cross_entropy_isa.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

void check_logits(const char* op, const at::Tensor& logits) {
  TORCH_CHECK_VALUE(logits.dim() == 2, op, ": logits must be [n, v_local]; got ", logits.sizes());
}

at::Tensor empty_sums(const at::Tensor& logits, at::IntArrayRef shape) {
  return at::empty(shape, logits.options().dtype(accumulator_type(logits.scalar_type())));
}

}  // namespace

at::Tensor row_max(const at::Tensor& logits_any) {
  const at::Tensor logits = logits_any.contiguous();
  check_logits("row_max", logits);
  const int64_t v = logits.size(1);
  const at::Tensor max = empty_sums(logits, {logits.size(0)});
  with_element_type("row_max", logits.scalar_type(), [&]<class T>(T) {
    const auto loops = cross_entropy_loops<T>();
    for_ranges(logits.size(0), v, [&](int64_t begin, int64_t end) {
      loops.row_max(elements_<Accumulator<T>>(max) + begin, elements<T>(logits) + begin * v, end - begin, v);
    });
  });
  return max;
}

at::Tensor sum_exp_and_target(const at::Tensor& logits_any, const at::Tensor& labels_any, int64_t begin_id,
                              const at::Tensor& max_any) {
  const at::Tensor logits = logits_any.contiguous(), labels = labels_any.contiguous(),
                   max = max_any.contiguous();
  check_logits("sum_exp_and_target", logits);
  const int64_t n = logits.size(0), v = logits.size(1);
  check_tensor("sum_exp_and_target", "labels", labels, {n}, at::kLong);
  check_tensor("sum_exp_and_target", "max", max, {n}, accumulator_type(logits.scalar_type()));
  const at::Tensor result = empty_sums(logits, {2, n});
  with_element_type("sum_exp_and_target", logits.scalar_type(), [&]<class T>(T) {
    const auto loops = cross_entropy_loops<T>();
    auto* sum = elements_<Accumulator<T>>(result);
    const auto* largest = elements<Accumulator<T>>(max);
    for_ranges(n, v, [&](int64_t begin, int64_t end) {
      loops.sum_exp(sum + begin, elements<T>(logits) + begin * v, largest + begin, end - begin, v);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t target = elements<int64_t>(labels)[row] - begin_id;
        const bool is_here = target >= 0 && target < v;
        sum[n + row] = is_here ? loops.load(elements<T>(logits) + row * v + target) - largest[row] : 0;
      }
    });
  });
  return result;
}

at::Tensor cross_entropy_backward(const at::Tensor& logits_any, const at::Tensor& labels_any,
                                  int64_t begin_id, const at::Tensor& lse_any, double scale,
                                  int64_t ignore_index) {
  const at::Tensor logits = logits_any.contiguous(), labels = labels_any.contiguous(),
                   lse = lse_any.contiguous();
  check_logits("cross_entropy_backward", logits);
  const int64_t n = logits.size(0), v = logits.size(1);
  check_tensor("cross_entropy_backward", "labels", labels, {n}, at::kLong);
  check_tensor("cross_entropy_backward", "lse", lse, {n}, accumulator_type(logits.scalar_type()));
  const at::Tensor d_logits = at::empty_like(logits);
  with_element_type("cross_entropy_backward", logits.scalar_type(), [&]<class T>(T) {
    const auto loops = cross_entropy_loops<T>();
    for_ranges(n, v, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* d = elements_<T>(d_logits) + row * v;
        const int64_t label = elements<int64_t>(labels)[row], target = label - begin_id;
        if (label == ignore_index) {
          std::fill_n(d, v, T{});
          continue;
        }
        loops.backward_row(d, elements<T>(logits) + row * v, elements<Accumulator<T>>(lse)[row],
                           static_cast<Accumulator<T>>(scale), target >= 0 && target < v ? target : -1, v);
      }
    });
  });
  return d_logits;
}

}  // namespace shardwise::kernels
