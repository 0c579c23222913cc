#include "shardwise/plan/generation.h"

#include <algorithm>

#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

/// One sequence of all rows, under TP.
Workload workload_of(const Generation& g) {
  Workload workload{.config = g.config, .tp = g.tp, .stream = Stream::tp};
  workload.sequence_length = g.rows;
  workload.batch_size = 1;
  workload.element_bytes = g.element_bytes;
  return workload;
}

/// Rows whose scores attention computes at once (kernels/attention_blocks.h).
constexpr int64_t kAttentionRows = 64;
constexpr int64_t kMostExpanded = int64_t{4} << 20;

class Forward {
 public:
  Forward(const Generation& generation, int rank)
      : generation_(generation), workload_(workload_of(generation)), sizes_(workload_, rank) {}

  Entries held(int rank) const {
    const int64_t d = generation_.config.head_dim, layers = generation_.config.num_hidden_layers;
    const int64_t per_token = 2 * layers * sizes_.share().kv_heads * d * generation_.element_bytes;
    const int64_t by_parameters = parameters_held(workload_, rank) * generation_.element_bytes;
    return {{"weights", generation_.weight_bytes.value_or(by_parameters)},
            {"rows of quantized weights, expanded", expanded_bytes()},
            {"keys and values", generation_.cached_tokens * per_token},
            {"rotary tables", rotary_bytes()}};
  }

  Instants instants() const { return {attention(), output(), mlp(), head()}; }

 private:
  /// cos and sin of the elements that are rotated, half as many each.
  int64_t rotary_bytes() const {
    const auto rotated = static_cast<int64_t>(2 * model::inverse_frequencies(generation_.config).size());
    return generation_.longest_cache * rotated * workload_.accumulator_bytes();
  }
  /// Of the block's largest product, as quant/product.cpp multiplies it.
  int64_t expanded_bytes() const {
    if (!generation_.weight_bytes) return 0;
    const int64_t features = std::max(sizes_.inner_features(), sizes_.qkv_features());
    return std::min(kMostExpanded, features * generation_.config.hidden_size * generation_.element_bytes);
  }
  Entry stream(const char* name) const { return {name, sizes_.whole()}; }
  Entry term() const { return {"sum", sizes_.whole(), workload_.term_pool()}; }
  /// One head's keys and values widened, and the scores of a block of rows: a thread's, and a rank has one.
  Entry scratch() const {
    const int64_t keys = generation_.longest_cache, d = generation_.config.head_dim;
    return {"attention's scratch",
            (keys * (2 * d + kAttentionRows) + 2 * kAttentionRows * d) * workload_.accumulator_bytes()};
  }
  Entry attended() const { return {"attention output", sizes_.features(sizes_.query_features())}; }
  Entry product() const { return {"q|k|v", sizes_.features(sizes_.qkv_features())}; }

  /// Of one text; of several the last, beside what the others' have left.
  Instant attention() const {
    Entries entries{stream("block's input"), stream("norm1"), product(), attended(), scratch()};
    if (generation_.texts == 1) {
      entries.push_back({"heads", product().bytes});
      entries.push_back({"lse", sizes_.share().heads * sizes_.statistics(sizes_.share().rows)});
    } else {
      entries.push_back({"all outputs", attended().bytes});
    }
    return {"attention", entries};
  }
  Instant output() const {
    return {"attention's term", {stream("block's input"), stream("norm1"), product(), attended(), term()}};
  }
  Instant mlp() const {
    return {"mlp",
            {stream("stream"),
             stream("norm2"),
             {"inner", sizes_.features(sizes_.inner_features())},
             {"down input", sizes_.features(sizes_.share().ffn)},
             term()}};
  }
  /// Of the texts' last rows; chosen from in fp64.
  Instant head() const {
    const int64_t logits = generation_.texts * sizes_.share().vocab;
    return {"head",
            {stream("stream"), {"logits", logits * generation_.element_bytes}, {"wide logits", logits * 8}}};
  }

  const Generation& generation_;
  Workload workload_;
  Sizes sizes_;
};

}  // namespace

GenerationPeak generation_peak(const Generation& generation, int rank) {
  const Forward forward(generation, rank);
  const Instants instants = forward.instants();
  const auto own = [](const Instant& instant) { return total(instant.entries, Pool::own); };
  return {forward.held(rank), *std::ranges::max_element(instants, {}, own)};
}

}  // namespace shardwise::plan
