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
  TORCH_CHECK_VALUE(logits.dim() == 2, op, ": logits must be [n, v_local]; got ", logits.sizes(),
                    " [SW0405]");
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
  with_element_type("row_max", logits, [&]<class T>(T) {
    const auto loops = cross_entropy_loops<T>();
    for_ranges(logits.size(0), v, [&](int64_t begin, int64_t end) {
      loops.row_max(elements_<Accumulator<T>>(max) + begin, elements<T>(logits) + begin * v, end - begin, v);
    });
  });
  return max;
}

at::Tensor loss_sums(const at::Tensor& logits_any, const at::Tensor& labels_any, int64_t begin_id,
                     const at::Tensor& max_any, const TokenLoss& loss) {
  const at::Tensor logits = logits_any.contiguous(), labels = labels_any.contiguous(),
                   max = max_any.contiguous();
  check_logits("loss_sums", logits);
  const int64_t n = logits.size(0), v = logits.size(1);
  check_tensor("loss_sums", "labels", labels, {n}, at::kLong);
  check_tensor("loss_sums", "max", max, {n}, accumulator_type(logits.scalar_type()));
  const bool is_smoothed = loss.label_smoothing > 0;
  const at::Tensor result = empty_sums(logits, {is_smoothed ? 3 : 2, n});
  with_element_type("loss_sums", logits, [&]<class T>(T) {
    const auto loops = cross_entropy_loops<T>();
    auto* sum = elements_<Accumulator<T>>(result);
    const auto* largest = elements<Accumulator<T>>(max);
    for_ranges(n, v, [&](int64_t begin, int64_t end) {
      const T* rows = elements<T>(logits) + begin * v;
      loops.sum_exp(sum + begin, rows, largest + begin, end - begin, v);
      if (is_smoothed) loops.sum_shifted(sum + 2 * n + begin, rows, largest + begin, end - begin, v);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t target = elements<int64_t>(labels)[row] - begin_id;
        const bool is_here = target >= 0 && target < v;
        sum[n + row] = is_here ? loops.load(elements<T>(logits) + row * v + target) - largest[row] : 0;
      }
    });
  });
  return result;
}

namespace {

template <class A>
RowGradient<A> row_gradient(const LossGradient& gradient, A lse) {
  const TokenLoss& loss = gradient.loss;
  return {.scale = static_cast<A>(gradient.scale),
          .probability = 1 + static_cast<A>(2 * loss.z_loss) * lse,
          .label = static_cast<A>(loss.label_weight()),
          .each_class = static_cast<A>(loss.class_weight())};
}

}  // namespace

at::Tensor cross_entropy_backward(const at::Tensor& logits_any, const at::Tensor& labels_any,
                                  int64_t begin_id, const at::Tensor& lse_any, const LossGradient& gradient) {
  const at::Tensor logits = logits_any.contiguous(), labels = labels_any.contiguous(),
                   lse = lse_any.contiguous();
  check_logits("cross_entropy_backward", logits);
  const int64_t n = logits.size(0), v = logits.size(1);
  check_tensor("cross_entropy_backward", "labels", labels, {n}, at::kLong);
  check_tensor("cross_entropy_backward", "lse", lse, {n}, accumulator_type(logits.scalar_type()));
  const at::Tensor d_logits = at::empty_like(logits);
  with_element_type("cross_entropy_backward", logits, [&]<class T>(T) {
    const auto loops = cross_entropy_loops<T>();
    for_ranges(n, v, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* d = elements_<T>(d_logits) + row * v;
        const int64_t label = elements<int64_t>(labels)[row], target = label - begin_id;
        if (label == gradient.ignore_index) {
          std::fill_n(d, v, T{});
          continue;
        }
        const auto row_lse = elements<Accumulator<T>>(lse)[row];
        loops.backward_row(d, elements<T>(logits) + row * v, row_lse, row_gradient(gradient, row_lse),
                           target >= 0 && target < v ? target : -1, v);
      }
    });
  });
  return d_logits;
}

}  // namespace shardwise::kernels
