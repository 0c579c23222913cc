#include "shardwise/kernels/add_rms_norm.h"

#include <c10/util/SmallVector.h>

#include "shardwise/base/profile.h"
#include "shardwise/kernels/add_rms_norm_isa.h"
#include "shardwise/kernels/device.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/kernels/threads.h"

namespace shardwise::kernels {
namespace {

constexpr const char* kOp = "add_rms_norm";

template <class T>
c10::SmallVector<const T*, 8> first_rows(const PartialRows& partials, int64_t h) {
  c10::SmallVector<const T*, 8> rows;
  for (const void* partial : partials.data)
    rows.push_back(static_cast<const T*>(partial) + partials.first_row * h);
  return rows;
}

}  // namespace

void add_rms_norm_out(at::Tensor& residual, at::Tensor& norm, const at::Tensor& x_any,
                      const PartialRows& partials, const AddRmsNorm& add) {
  const base::ProfiledOp profiled("add_rms_norm");
  TORCH_CHECK_VALUE(x_any.dim() > 0 && x_any.size(-1) > 0 && !partials.data.empty(), kOp,
                    ": x must be [..., h] with h > 0, and there must be a partial sum; got ", x_any.sizes(),
                    " and ", partials.data.size(), " partial sums [SW0397]");
  const at::Tensor x = x_any.contiguous(), weight = add.weight.contiguous();
  const at::Tensor bias = add.bias.defined() ? add.bias.contiguous() : at::Tensor();
  const int64_t h = x.size(-1);
  check_tensor(kOp, "weight", weight, {h}, x.scalar_type());
  if (bias.defined()) check_tensor(kOp, "bias", bias, {h}, x.scalar_type());
  check_output(kOp, "residual", residual, x.sizes(), x.scalar_type());
  check_output(kOp, "norm", norm, x.sizes(), x.scalar_type());
  if (const auto* device = device_of(kOp, x, weight, bias, residual, norm)) {
    TORCH_INTERNAL_ASSERT(partials.data.size() == 1, "add_rms_norm: a device adds one partial sum");
    const auto* y = static_cast<const char*>(partials.data[0]) + partials.first_row * h * x.element_size();
    return device->add_rms_norm(residual, norm, x, y, {bias, weight, add.eps});
  }
  with_element_type(kOp, x, [&]<class T>(T) {
    const auto loops = add_rms_norm_loops<T>();
    const c10::SmallVector<const T*, 8> first = first_rows<T>(partials, h);
    const AddRmsNormRows<T> rows{elements_<T>(residual),
                                 elements_<T>(norm),
                                 first.data(),
                                 int(first.size()),
                                 elements<T>(x),
                                 bias.defined() ? elements<T>(bias) : nullptr,
                                 elements<T>(weight),
                                 add.eps,
                                 h};
    for_ranges(rows_of(x), h, [&](int64_t begin, int64_t end) { loops.forward(rows, begin, end); });
  });
}

}  // namespace shardwise::kernels
