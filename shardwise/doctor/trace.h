// Test cases of the doctor, how they are run, and one traced forward and backward: every stage's output and
// gradient, the gradient norms, and the communication. The micro-batch is always the same, so results differ
// only by the configuration.
#pragma once
#include <string>
#include <vector>

#include "shardwise/model/decoder.h"
#include "shardwise/nn/loss.h"
#include "shardwise/plan/communication.h"
#include "shardwise/plan/workload.h"

namespace shardwise::doctor {

/// Shapes: both [s, b] int64; labels are the ids shifted by one position.
struct Tokens {
  at::Tensor ids, labels;
};

/// A micro-batch and its loss function.
struct TestCase {
  std::string name;
  Tokens tokens;
  nn::LossOptions loss;
  double dropout = 0, attention_dropout = 0;
  kernels::RandomKey key = kernels::RandomKey::of(0);
};

/// Returns the mean loss of all tokens without dropout.
TestCase plain_case(const Tokens& tokens);

/// Returns a test case with all options of training: both kinds of dropout, label smoothing, z-loss, ignored
/// labels at the start of every sequence (as of a prompt), and a mean over twice the tokens (as with two
/// micro-batches). Masks are drawn from `seed`.
TestCase training_case(const Tokens& tokens, uint64_t seed);

/// How a test case is run.
struct RunConfig {
  at::ScalarType dtype;
  plan::Parallelism parallelism = plan::Parallelism::tp;
  plan::ColumnInputStorage column_input_storage = plan::ColumnInputStorage::shard_in_place;
  plan::Recompute recompute = plan::Recompute::none;
  std::string device = "cpu";  // as --device names it

  bool is_fp64() const { return dtype == at::kDouble; }
  /// "TP=2+SP, full recomputation" or "TP=2+SP on cuda".
  std::string name(int tp) const;
};

/// Returns fp64, fp32 or bf16.
std::string dtype_name(at::ScalarType dtype);

/// Returns plan's description of `test_case` run with `run_config` on `tp` ranks.
plan::Workload workload_of(const config::Config& config, const TestCase& test_case,
                           const RunConfig& run_config, int tp);

/// This rank's part of a stage's output and of its gradient.
struct StageOutput {
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
  std::vector<StageOutput> activations;  // in forward order
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
