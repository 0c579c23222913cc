// One traced forward and backward of a model: every stage's output and gradient, the gradient norms, and the
// communication.
#pragma once
#include <vector>

#include "shardwise/doctor/test_case.h"
#include "shardwise/model/decoder.h"
#include "shardwise/plan/communication.h"

namespace shardwise::doctor {

/// This rank's part of a stage's output and of its gradient.
struct Activation {
  nn::Stage stage;
  at::Tensor value, gradient;
};

struct Norms {
  double one = 0, two = 0, inf = 0;
  bool operator==(const Norms&) const = default;
};

/// This rank's calls and bytes: in forward and backward, once per step, and in any other collective.
struct Sent {
  plan::Passes passes;
  plan::Collectives optimizer;
  plan::Traffic other;
};

struct Trace {
  std::vector<Activation> activations;  // in forward order
  double loss = 0;
  Norms norms;  // of the synchronized gradients
  Sent sent;
};

/// Returns the parameter specs of `weights`.
parallel::ParamSpecs specs_of(const model::DecoderWeights& weights, plan::Parallelism parallelism);

/// Returns the step options of a run over `group`.
nn::Step make_step(const TestCase& test_case, const RunConfig& run_config, const comm::Group& group);

/// Zeroes the main gradients, runs forward and backward once, and synchronizes gradients that are partial
/// sums. Collective. The gradients stay in the parameters. `weights` has run_config.dtype.
Trace run_traced(const model::DecoderWeights& weights, const TestCase& test_case,
                 const RunConfig& run_config);

/// Returns the loss, without building a graph. Collective.
double loss_of(const model::DecoderWeights& weights, const TestCase& test_case, const RunConfig& run_config);

}  // namespace shardwise::doctor
