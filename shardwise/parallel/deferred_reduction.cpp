#include "shardwise/parallel/deferred_reduction.h"

#include "shardwise/kernels/add_rms_norm.h"
#include "shardwise/kernels/tensors.h"
#include "shardwise/parallel/blockwise_reduce_scatter.h"

namespace shardwise::parallel {

using at::Tensor;

namespace {

/// One pass over the rows of a residual, which adds the ranks' partial sums and a bias and normalizes the
/// result.
class FusedPass {
 public:
  /// `norm`: the output tensor of the norm.
  FusedPass(const Tensor& residual, const ParameterPtr& bias, const RmsNorm& weights, Tensor norm)
      : residual_(residual),
        add_{bias ? bias->value : Tensor(), weights.weight, weights.eps},
        sum_(kernels::empty(residual.sizes(), residual)),
        norm_(std::move(norm)) {}

  /// `first_row`: the row of the partial sums that belongs to the residual's first row.
  void run(comm::PeerBuffers partial_sums, int64_t first_row = 0) {
    kernels::add_rms_norm_out(sum_, norm_, residual_, {partial_sums, first_row}, add_);
  }
  void run_reduced(const Tensor& sum) {
    const void* const only = sum.const_data_ptr();
    run({&only, 1});
  }

  /// Stores the sum in `x` as its complete value and returns the norm.
  template <ResidualStream Stream>
  Placed<Stream> complete(DeferredReduction<Stream>& x) const {
    x = DeferredReduction<Stream>(Placed<Stream>(sum_));
    return Placed<Stream>(norm_);
  }

 private:
  Tensor residual_;
  kernels::AddRmsNorm add_;
  Tensor sum_, norm_;
};

}  // namespace

template <>
Placed<Invariant> reduce_and_rms_norm<Invariant>(DeferredReduction<Invariant>& x, const RmsNorm& norm,
                                                 const Step& step) {
  const Tensor& residual = x.value->local();
  FusedPass pass(residual, x.pending->bias, norm, kernels::empty(residual.sizes(), residual));
  Tensor y = x.pending->y.local();
  const comm::Group& group = step.group;
  if (group.size() == 1 || (group.has_symmetric_heap() && int64_t(y.nbytes()) <= kOneShotBytes)) {
    group.fused_all_reduce(y, [&](comm::PeerBuffers partial_sums) { pass.run(partial_sums); });
  } else {
    group.all_reduce_(y);
    pass.run_reduced(y);
  }
  return pass.complete(x);
}

template <>
Placed<Sharded<kSequence>> reduce_and_rms_norm<Sharded<kSequence>>(DeferredReduction<Sharded<kSequence>>& x,
                                                                   const RmsNorm& norm, const Step& step) {
  const Tensor& residual = x.value->local();
  FusedPass pass(residual, x.pending->bias, norm, step.group.empty(residual.sizes(), residual.scalar_type()));
  const Tensor& y = x.pending->y.local();
  const comm::Group& group = step.group;
  if (group.size() == 1 || group.has_symmetric_heap()) {
    const int64_t first_row = step.local_sequence().begin * y.size(1);
    group.fused_reduce_scatter(y, step.sequence,
                               [&](comm::PeerBuffers partial_sums) { pass.run(partial_sums, first_row); });
  } else {
    pass.run_reduced(reduce_scatter_rows(y, step));
  }
  return pass.complete(x);
}

}  // namespace shardwise::parallel
