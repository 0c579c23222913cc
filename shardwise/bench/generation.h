// Times generation by a model with random weights: a token of each of several texts, or a prompt.
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/base/profile.h"
#include "shardwise/bench/timing.h"
#include "shardwise/model/decoder.h"

namespace shardwise::bench {

/// What a step does.
enum class Phase { decode, prefill };

struct GenerationCase {
  int64_t texts, context;  // `context` tokens are in each cache, or in each prompt
  std::optional<at::ScalarType> cache_dtype =
      std::nullopt;  // of keys and values; nullopt: that of the weights
};

/// Texts that are generated without end, greedily.
class Texts {
 public:
  /// Allocates caches of `of`, whose keys and values are random.
  Texts(const model::DecoderWeights& weights, const GenerationCase& of);

  /// Generates a token of each text. A text that has 256 new tokens starts again. Collective.
  void decode();
  /// Processes prompts of `context` tokens, in pieces of 512 as infer::generate does. Collective.
  void prefill();
  /// One of both.
  void step(Phase phase) { phase == Phase::decode ? decode() : prefill(); }

  /// Returns the first text's last token.
  int64_t last() const { return last_.front(); }

 private:
  void start();
  void forward(const std::vector<nn::CachedRows>& batch);

  const model::DecoderWeights& weights_;
  int64_t context_;
  std::deque<nn::Cache> caches_;
  std::vector<int64_t> last_;
};

/// Reads every weight once: a lower bound for the time of a token. Returns a sum, which makes the reads
/// necessary.
uint64_t read_once(const model::DecoderWeights& weights);

struct GenerationMeasured {
  GenerationCase of;
  Measured step;  // all texts
};

struct GenerationTimes {
  int64_t weight_bytes;  // of one rank
  Measured read;         // reading all weights once
  std::vector<GenerationMeasured> cases;
};

/// Times the cases for `seconds` in total, next to reading the weights. Rank 0 calls `on_progress`.
/// Collective.
GenerationTimes measure_generation(const model::DecoderWeights& weights, Phase phase,
                                   const std::vector<GenerationCase>& cases, double seconds,
                                   const std::function<void(int64_t done, int64_t repetitions)>& on_progress);

/// Records some steps of one case, after one that warms up. Collective.
base::Profile profile_generation(const model::DecoderWeights& weights, Phase phase, const GenerationCase& of);

}  // namespace shardwise::bench
