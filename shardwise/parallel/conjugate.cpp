#include "shardwise/parallel/conjugate.h"

#include "shardwise/parallel/node.h"

namespace shardwise::parallel {
namespace {

struct Conjugate : torch::autograd::Function<Conjugate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const LinearMap& forward,
                            LinearMap backward) {
    save_state(context, std::move(backward));
    return forward(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {saved_state<LinearMap>(context)(gradients[0]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor conjugate(const at::Tensor& x, const LinearMap& forward, LinearMap backward) {
  if (!needs_gradient(x)) return forward(x);
  return Conjugate::apply(x, forward, std::move(backward));
}

}  // namespace shardwise::parallel
