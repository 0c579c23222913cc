// A real micro-batch of a planned workload, for the tests that compare plan/ with what happens.
#pragma once
#include <string>
#include <vector>

#include "shardwise/plan/workload.h"
#include "tests/support/cases.h"

namespace shardwise::plan {

/// Parameters that a run leaves as they are, in words and by our names; null: none.
struct FrozenSubset {
  const char* name;
  bool (*has)(const std::string& parameter, const model::Config& config);
};

/// What is asked of a step besides its sizes.
struct Asked {
  double dropout = 0, attention_dropout = 0, label_smoothing = 0, z_loss = 0;
  bool is_padded = false;
};

/// How a workload runs: its element type, what is asked of it, and what is frozen.
struct PlannedRun {
  std::string kind, micro;  // of model and of micro-batch, in words
  Workload workload;
  Asked asked;
  const FrozenSubset* frozen = nullptr;

  /// The same with as many layers, and what is frozen of them.
  PlannedRun of_layers(int64_t layers) const;
  at::ScalarType dtype() const;
  testing::Stream stream() const;
  testing::Path path() const;
  std::string name() const;
};

/// TP, TP+SP × in place, kept, gathered again × no, selective and full recomputation × a model of each family
/// (MHA, GQA, few KV heads, MQA, 6 query and 3 KV heads), and two whose ffn and vocabulary are empty on some
/// of three ranks × fp32 with dropout and smoothed labels, bf16, fp64 with a sequence shorter than the ranks,
/// fp32 with padding, attention dropout, z-loss and smoothed labels. All of them with nothing frozen; those
/// with each of the frozen subsets as a covering of strength 3, or all of them too (tests/support/extent.h).
std::vector<PlannedRun> runs(int ranks);

/// The model of a run, with weights drawn, some frozen, and gradients zeroed.
class RunningModel {
 public:
  RunningModel(const PlannedRun& run, const comm::Group& group);

  /// One forward; the graph hangs on the loss.
  at::Tensor forward() const;
  const model::DecoderWeights& weights() const { return weights_; }
  /// The one that the step uses: its counters are those of this run.
  const comm::Group& group() const { return step_.group; }

 private:
  PlannedRun run_;
  model::DecoderWeights weights_;
  testing::Batch batch_;
  nn::Step step_;
};

}  // namespace shardwise::plan
