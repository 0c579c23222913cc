// One small problem of the grid: what model, on what batch, and how its training step is split.
#pragma once
#include <optional>
#include <vector>

#include "shardwise/base/recompute.h"
#include "tests/support/cases.h"

namespace shardwise::testing {

/// How many query heads share a KV head, by name.
struct Heads {
  const char* name;
  int64_t query, kv;
};

/// Which linear layers have one: none of them; q, k and v (as Qwen 2); all but the head (as GPT-2).
enum class Biases { none, qkv, all };

/// Which parameters are not trained, by name.
struct Frozen {
  const char* name = "nothing";
  bool (*holds)(const std::string& parameter) = [](const std::string&) { return false; };
};

inline constexpr int64_t kBatch = 2;

/// A reference serves all ways to split it.
struct Problem {
  Heads heads;
  int64_t vocab, sequence, ffn;
  double dropout;
  bool is_tied;

  // The model; these defaults are a Llama's.
  model::Norm norm = model::Norm::rms;
  model::Activation activation = model::Activation::silu_gated;
  model::Positions positions = model::Positions::rotary;
  double partial_rotary_factor = 1;
  Biases biases = Biases::all;
  bool has_qk_norm = false;
  std::optional<int64_t> window = {};
  std::vector<bool> slides = {};

  // The training step.
  bool is_padded = false;
  double attention_dropout = 0, label_smoothing = 0, z_loss = 0;
  Frozen frozen = {};

  /// Two layers; Llama 3's rotary scaling in some of the head counts.
  model::Config config() const;
  /// Padding, on the left of the first sequence and on the right of the second, has no labels.
  Batch batch() const;
  /// A gradient that is zero by its formula: of what only attention's scores depend on, at one position;
  /// of a key bias that is added to every key alike.
  bool has_no_gradient(const std::string& name) const;
};

struct Way {
  Stream stream;
  Path path;
  base::Recompute recompute = base::Recompute::none;
  bool split_batch = false;
  std::string name() const;
};

/// TP, TP+SP × in place, kept, gathered again.
std::vector<Way> ways();

}  // namespace shardwise::testing
