// One forward and backward of a model, watched: what every stage gives and gets back, the norms, and what was
// sent.
#pragma once
#include <vector>

#include "shardwise/doctor/task.h"
#include "shardwise/model/decoder.h"
#include "shardwise/plan/communication.h"

namespace shardwise::doctor {

/// A stage's output and the gradient that came back to it, as this rank holds them.
struct Activation {
  nn::Stage stage;
  at::Tensor value, gradient;
};

struct Norms {
  double one = 0, two = 0, inf = 0;
  bool operator==(const Norms&) const = default;
};

/// Calls and bytes of this rank: of the two passes, of what follows once a step, and of any other collective.
struct Sent {
  plan::Passes passes;
  plan::Collectives optimizer;
  plan::Traffic other;
};

struct Pass {
  std::vector<Activation> activations;  // in the forward's order
  double loss = 0;
  Norms norms;  // of the synchronized gradients
  Sent sent;
};

/// The specs of `weights` for a stream.
parallel::ParamSpecs specs_of(const model::DecoderWeights& weights, plan::Stream stream);

/// The step that a way takes over `group`.
nn::Step step_of(const Task& task, const Way& way, const comm::Group& group);

/// Collective: zeroes the main gradients, computes `task` once in the way given, and synchronizes what is a
/// term. The gradients are left in the parameters. `weights` has way.dtype.
Pass run_pass(const model::DecoderWeights& weights, const Task& task, const Way& way);

/// Collective: the loss alone, without a graph.
double loss_of(const model::DecoderWeights& weights, const Task& task, const Way& way);

}  // namespace shardwise::doctor
