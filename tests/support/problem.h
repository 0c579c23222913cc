// One small problem of the grid: its model, its batch, and the run configuration of its training step.
#pragma once
#include <optional>
#include <vector>

#include "shardwise/base/recompute.h"
#include "tests/support/cases.h"

namespace shardwise::testing {

/// Numbers of query and KV heads, with a name.
struct Heads {
  const char* name;
  int64_t query, kv;
};

/// Which linear layers have a bias: none; q, k and v (Qwen 2); all except the head (GPT-2).
enum class Biases { none, qkv, all };

/// A named predicate of frozen parameters.
struct Frozen {
  const char* name = "nothing";
  bool (*holds)(const std::string& parameter) = [](const std::string&) { return false; };
};

inline constexpr int64_t kBatch = 2;

/// A model and a batch. One reference result serves all run configurations of a problem.
struct Problem {
  Heads heads;
  int64_t vocab, sequence, ffn;
  double dropout;
  bool is_tied;

  // The model; the defaults are Llama's.
  config::Norm norm = config::Norm::rms;
  config::Activation activation = config::Activation::silu_gated;
  config::Positions positions = config::Positions::rotary;
  double partial_rotary_factor = 1;
  Biases biases = Biases::all;
  bool has_qk_norm = false;
  std::optional<int64_t> window = {};
  std::vector<bool> slides = {};
  int64_t hidden = 24, head_dim = 6;

  // The training step.
  bool is_padded = false;
  double attention_dropout = 0, label_smoothing = 0, z_loss = 0;
  Frozen frozen = {};

  /// Returns a config with two layers, with Llama 3's rotary scaling for some of the head counts.
  config::Config config() const;
  /// Returns the batch. Padding is on the left of the first sequence and on the right of the second, without
  /// labels.
  Batch batch() const;
  /// Returns true if the gradient is zero by its formula: for parameters that affect only attention's scores
  /// if there is one position, and for a key bias that shifts all scores of a query equally.
  bool has_no_gradient(const std::string& name) const;
};

/// How a training step is parallelized.
struct RunConfig {
  Stream stream;
  Path path;
  base::Recompute recompute = base::Recompute::none;
  bool split_batch = false;
  std::string name() const;
};

/// Returns TP and TP+SP, each with every Path.
std::vector<RunConfig> run_configs();

}  // namespace shardwise::testing
