#include "shardwise/parallel/flat_gradients.h"

#include "shardwise/base/profile.h"
#include "shardwise/parallel/flat_tensor.h"

namespace shardwise::parallel {

FlatGradients::FlatGradients(const ParamSpecs& specs, const comm::Group& group) : group_(group) {
  const std::optional<at::ScalarType> dtype = gradient_dtype({specs});
  if (!dtype) return;
  const std::vector<ParameterPtr> parameters = trained_parameters(specs);
  all_ = group.empty({local_elements(parameters)}, *dtype);
  all_.zero_();
  const std::vector<at::Tensor> parts = parts_of_flat(all_, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->main_grad = parts[i];
}

void FlatGradients::sum_() {
  if (!all_.defined()) return;
  base::enter_part("");
  group_.all_reduce_(all_);
}

void FlatGradients::sum_owned_(const OwnedRows& owned) {
  if (!all_.defined()) return;
  base::enter_part("");
  const base::Range own = owned.elements()[0].range(group_.rank());
  at::Tensor sum = all_.narrow(/*dim=*/0, own.begin, own.size());
  group_.reduce_scatter_out(sum, all_, owned.elements()[0]);
}

void FlatGradients::zero_others_(const OwnedRows& owned) {
  if (!all_.defined()) return;
  const base::Range own = owned.elements()[0].range(group_.rank());
  all_.narrow(/*dim=*/0, 0, own.begin).zero_();
  all_.narrow(/*dim=*/0, own.end, all_.numel() - own.end).zero_();
}

}  // namespace shardwise::parallel
