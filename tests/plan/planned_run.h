// Runs a micro-batch of a planned workload, for the tests that compare plan/ with measurements.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/workload.h"
#include "tests/support/cases.h"

namespace shardwise::plan {

/// A named set of frozen parameters.
struct FrozenSubset {
  const char* name;
  bool (*has)(const std::string& parameter, const config::Config& config);
};

/// The options of a step besides its sizes.
struct StepOptions {
  double dropout = 0, attention_dropout = 0, label_smoothing = 0, z_loss = 0;
  bool is_padded = false;
};

/// A workload with its options and frozen parameters.
struct PlannedRun {
  std::string kind, micro;  // descriptions of the model and of the micro-batch
  Workload workload;
  StepOptions options;
  const FrozenSubset* frozen = nullptr;

  /// Returns a copy of this run with `layers` layers.
  PlannedRun of_layers(int64_t layers) const;
  at::ScalarType dtype() const;
  testing::Stream stream() const;
  testing::Path path() const;
  std::string name() const;
};

/// Returns the runs to test: TP, TP+SP × gathered inputs read in place, saved, gathered again × no, selective
/// and full recomputation × a model of each family (MHA, GQA, few KV heads, MQA, 6 query and 3 KV heads), and
/// two whose ffn and vocabulary are empty on some of three ranks × fp32 with dropout and label smoothing,
/// bf16, fp64 with a sequence shorter than the number of ranks, fp32 with padding, attention dropout, z-loss
/// and label smoothing. Without frozen parameters it returns all combinations; with each frozen subset a
/// covering of strength 3, or all of them (tests/support/extent.h).
std::vector<PlannedRun> runs(int ranks);

/// The model of a run, with random weights, frozen parameters, and zeroed gradients.
class RunningModel {
 public:
  RunningModel(const PlannedRun& run, const comm::Group& group);

  /// Runs forward and returns the loss with its graph.
  at::Tensor forward() const;
  const model::DecoderWeights& weights() const { return weights_; }
  /// Returns the group of the step, whose counters count this run.
  const comm::Group& group() const { return step_.group; }

 private:
  PlannedRun run_;
  model::DecoderWeights weights_;
  testing::Batch batch_;
  nn::Step step_;
};

}  // namespace shardwise::plan
