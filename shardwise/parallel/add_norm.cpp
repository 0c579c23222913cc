#include "shardwise/parallel/add_norm.h"

#include <ATen/ops/empty.h>

#include "shardwise/kernels/add_rms_norm.h"
#include "shardwise/parallel/partial_rows.h"

namespace shardwise::parallel {

using at::Tensor;

namespace {

/// One pass over the rows of x, once their terms are there to be read.
class Pass {
 public:
  /// `norm`: where the norm is written.
  Pass(const Tensor& x, const RowTerms& terms, const RmsNorm& weights, Tensor norm)
      : x_(x),
        add_{terms.bias ? terms.bias->value : Tensor(), weights.weight, weights.eps},
        stream_(at::empty(x.sizes(), x.options())),
        norm_(std::move(norm)) {}

  /// `first_row`: where the rows of x begin in those of the terms.
  void over(comm::PeerBuffers terms, int64_t first_row = 0) {
    kernels::add_rms_norm_out(stream_, norm_, x_, {terms, first_row}, add_);
  }
  void over_sum(const Tensor& sum) {
    const void* const only = sum.const_data_ptr();
    over({&only, 1});
  }

  template <ResidualStream Stream>
  Normed<Stream> result() const {
    return {Placed<Stream>(stream_), Placed<Stream>(norm_)};
  }

 private:
  Tensor x_;
  kernels::AddRmsNorm add_;
  Tensor stream_, norm_;
};

}  // namespace

template <>
Normed<Invariant> add_rms_norm<Invariant>(const Placed<Invariant>& x, RowTerms terms, const RmsNorm& norm,
                                          const Step& step) {
  TORCH_INTERNAL_ASSERT(!terms.begun);
  Pass pass(x.local(), terms, norm, at::empty(x.local().sizes(), x.local().options()));
  Tensor y = terms.y.local();
  const comm::Group& group = step.group;
  if (group.size() == 1 || (group.has_symmetric_heap() && int64_t(y.nbytes()) <= kOneShotBytes)) {
    group.fused_all_reduce(y, [&](comm::PeerBuffers ranks) { pass.over(ranks); });
  } else {
    group.all_reduce_(y);
    pass.over_sum(y);
  }
  return pass.result<Invariant>();
}

template <>
Normed<Sharded<kSequence>> add_rms_norm<Sharded<kSequence>>(const Placed<Sharded<kSequence>>& x,
                                                            RowTerms terms, const RmsNorm& norm,
                                                            const Step& step) {
  TORCH_INTERNAL_ASSERT(!terms.begun);
  Pass pass(x.local(), terms, norm, step.group.empty(x.local().sizes(), x.local().scalar_type()));
  const Tensor& y = terms.y.local();
  const comm::Group& group = step.group;
  if (group.size() == 1 || group.has_symmetric_heap()) {
    const int64_t first_row = step.own_sequence().begin * y.size(1);
    group.fused_reduce_scatter(y, step.sequence,
                               [&](comm::PeerBuffers ranks) { pass.over(ranks, first_row); });
  } else {
    pass.over_sum(scattered_sum(y, step));
  }
  return pass.result<Sharded<kSequence>>();
}

}  // namespace shardwise::parallel
