#include "shardwise/parallel/quantized_parameter.h"

#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "shardwise/quant/quantize.h"

namespace shardwise::parallel {

using at::Tensor;
using base::Range;

Tensor group_maxima(const Parameter& weight, const Tensor& w, const comm::Group& group) {
  const quant::Panels& to = *weight.panels;
  const Tensor local = quant::group_maxima(w, to.format, to.in_features, to.columns);
  const bool shares_rows = !weight.rule.is_replicated() && weight.rule.dim == 1 && group.size() > 1;
  if (!shares_rows) return local;
  const Range held = to.format.groups_of(to.columns, to.in_features),
              all = to.format.groups_of({0, to.in_features}, to.in_features);
  Tensor full = at::zeros({local.size(0), all.size()}, local.options());
  // Replaces NaN by infinity, which is refused too: a maximum over ranks need not propagate NaN.
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  full.narrow(/*dim=*/1, held.begin, held.size()).copy_(at::nan_to_num(local, kInfinity, kInfinity));
  full = full.to(group.device());
  group.all_reduce_(full, comm::Reduce::max);
  full = full.cpu();
  return full.narrow(/*dim=*/1, held.begin, held.size()).contiguous();
}

void quantize_rows_(const Parameter& weight, int64_t begin, const Tensor& w, const Tensor& maxima) {
  quant::Panels& to = *weight.panels;
  quant::check_maxima(maxima, to.format, weight.name);
  quant::Matrix rows = quant::Matrix::empty(to.format, w.size(0), to.in_features, to.columns);
  quant::quantize_rows_(rows, /*begin=*/0, w, maxima);
  quant::pack_rows_(to, begin, rows);
}

}  // namespace shardwise::parallel
