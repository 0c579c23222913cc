#include "shardwise/kernels/cross_entropy.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/cross_entropy_isa.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

void check_logits(const char* op, const at::Tensor& logits) {
  TORCH_CHECK_VALUE(logits.dim() == 2, op, ": logits must be [n, v_local]; got ", logits.sizes(),
                    " [SW0405]");
}

}  // namespace

at::Tensor loss_terms(const at::Tensor& logits_any, const at::Tensor& labels_any, int64_t begin_id,
                      const TokenLoss& loss) {
  const base::ProfiledOp profiled("loss_terms");
  const at::Tensor logits = logits_any.contiguous(), labels = labels_any.contiguous();
  check_logits("loss_terms", logits);
  const int64_t n = logits.size(0), v = logits.size(1);
  check_tensor("loss_terms", "labels", labels, {n}, at::kLong);
  const at::Tensor result =
      at::empty({loss.terms(), n}, logits.options().dtype(accumulator_type(logits.scalar_type())));
  if (const auto* device = device_of("loss_terms", logits, labels)) {
    device->loss_terms(result, logits, labels, begin_id);
    return result;
  }
  with_element_type("loss_terms", logits, [&]<class T>(T) {
    using A = Accumulator<T>;
    const auto loops = cross_entropy_loops<T>();
    A* const terms = elements_<A>(result);
    for_ranges(n, v, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = elements<T>(logits) + row * v;
        const int64_t target = elements<int64_t>(labels)[row] - begin_id;
        const A max = loops.row_max(x, v), origin = std::isinf(max) ? 0 : max;
        terms[row] = max;
        terms[n + row] = loops.sum_exp(x, origin, v);
        terms[2 * n + row] = target >= 0 && target < v ? loops.load(x + target) : 0;
        if (loss.is_smoothed()) terms[3 * n + row] = loops.sum_shifted(x, origin, v);
      }
    });
  });
  return result;
}

namespace {

/// Returns log Σ exp(max[i] − max) · sum[i] over a token's shards, whose values are `stride` apart.
/// Computed with libm: at::exp is MKL's vmsExp, whose first call in a process may choose other code, and so
/// give other bits, in one of several threads that make it at once.
template <class A>
A log_sum_of(const A* maxima, const A* sums, int64_t shards, int64_t stride) {
  A max = maxima[0];
  for (int64_t i = 1; i < shards; ++i) max = std::max(max, maxima[i * stride]);
  A sum = 0;
  for (int64_t i = 0; i < shards; ++i) sum += std::exp(maxima[i * stride] - max) * sums[i * stride];
  return std::log(sum);
}

template <class A>
void log_sums_of(const at::Tensor& terms, const at::Tensor& result) {
  const int64_t shards = terms.size(0), n = terms.size(2), stride = terms.size(1) * n;
  const A* const maxima = elements<A>(terms);
  A* const log_sum = elements_<A>(result);
  for_ranges(n, 16 * shards, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) log_sum[i] = log_sum_of(maxima + i, maxima + n + i, shards, stride);
  });
}

}  // namespace

at::Tensor log_sums(const at::Tensor& terms_any) {
  const at::Tensor terms = terms_any.contiguous();
  TORCH_CHECK_VALUE(terms.dim() == 3 && terms.size(0) > 0 && terms.size(1) >= 3,
                    "log_sums: terms must be [shards, 3 or 4, n]; got ", terms.sizes(), " [SW0747]");
  check_tensor("log_sums", "terms", terms, terms.sizes(), accumulator_type(terms.scalar_type()));
  const at::Tensor result = at::empty({terms.size(2)}, terms.options());
  if (const auto* device = device_of("log_sums", terms)) {
    device->log_sums(result, terms);
    return result;
  }
  terms.scalar_type() == at::kDouble ? log_sums_of<double>(terms, result) : log_sums_of<float>(terms, result);
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

void cross_entropy_backward_(at::Tensor& logits, const at::Tensor& labels_any, int64_t begin_id,
                             const at::Tensor& lse_any, const LossGradient& gradient) {
  const base::ProfiledOp profiled("cross_entropy_backward");
  const at::Tensor labels = labels_any.contiguous(), lse = lse_any.contiguous();
  check_logits("cross_entropy_backward", logits);
  const int64_t n = logits.size(0), v = logits.size(1);
  check_output("cross_entropy_backward", "logits", logits, {n, v}, logits.scalar_type());
  check_tensor("cross_entropy_backward", "labels", labels, {n}, at::kLong);
  check_tensor("cross_entropy_backward", "lse", lse, {n}, accumulator_type(logits.scalar_type()));
  if (const auto* device = device_of("cross_entropy_backward", logits, labels, lse))
    return device->cross_entropy_backward(logits, labels, begin_id, lse, gradient);
  with_element_type("cross_entropy_backward", logits, [&]<class T>(T) {
    const auto loops = cross_entropy_loops<T>();
    for_ranges(n, v, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* x = elements_<T>(logits) + row * v;
        const int64_t label = elements<int64_t>(labels)[row], target = label - begin_id;
        if (label == gradient.ignore_index) {
          std::fill_n(x, v, T{});
          continue;
        }
        const auto row_lse = elements<Accumulator<T>>(lse)[row];
        loops.backward_row(x, row_lse, row_gradient(gradient, row_lse),
                           target >= 0 && target < v ? target : -1, v);
      }
    });
  });
}

}  // namespace shardwise::kernels
