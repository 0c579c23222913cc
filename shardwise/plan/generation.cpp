#include "shardwise/plan/generation.h"

#include <algorithm>

#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

/// One sequence with all rows, under TP.
Workload workload_of(const Generation& g) {
  Workload workload{.config = g.config, .tp = g.tp, .parallelism = Parallelism::tp};
  workload.sequence_length = g.rows;
  workload.batch_size = 1;
  workload.element_bytes = g.element_bytes;
  return workload;
}

/// Query rows of one block of attention scores (kernels/attention_blocks.h).
constexpr int64_t kAttentionRows = 64;
constexpr int64_t kMaxDequantizedBytes = int64_t{4} << 20;

class Forward {
 public:
  Forward(const Generation& generation, int rank)
      : generation_(generation), workload_(workload_of(generation)), sizes_(workload_, rank) {}

  Allocations persistent(int rank) const {
    const int64_t d = generation_.config.head_dim, layers = generation_.config.num_hidden_layers;
    const int64_t per_token = 2 * layers * sizes_.shard().kv_heads * d * generation_.element_bytes;
    const int64_t by_parameters = local_parameter_count(workload_, rank) * generation_.element_bytes;
    return {{"weights", generation_.weight_bytes.value_or(by_parameters)},
            {"dequantized rows", dequantized_bytes()},
            {"keys and values", generation_.cached_tokens * per_token},
            {"rotary tables", rotary_bytes()}};
  }

  MemorySnapshots snapshots() const { return {embedding(), attention(), output(), mlp(), head()}; }

 private:
  /// Bytes of the cos and sin tables: half of the rotated elements each.
  int64_t rotary_bytes() const {
    const auto rotated = static_cast<int64_t>(2 * config::inverse_frequencies(generation_.config).size());
    return generation_.longest_cache * rotated * workload_.accumulator_bytes();
  }
  /// Bytes of the dequantized rows of the block's largest GEMM, as quant/product.cpp multiplies them.
  int64_t dequantized_bytes() const {
    if (!generation_.config.quantization) return 0;
    const int64_t features = std::max(sizes_.inner_features(), sizes_.qkv_features());
    return std::min(kMaxDequantizedBytes,
                    features * generation_.config.hidden_size * generation_.element_bytes);
  }
  Allocation hidden(const char* name) const { return {name, sizes_.full_hidden()}; }
  Allocation partial_sum() const {
    return {"partial sum", sizes_.full_hidden(), workload_.partial_sum_pool()};
  }
  /// Widened keys and values of one head and the scores of a block of rows: per thread, and a rank has one.
  Allocation scratch() const {
    const int64_t keys = generation_.longest_cache, d = generation_.config.head_dim;
    return {"attention scratch",
            (keys * (2 * d + kAttentionRows) + 2 * kAttentionRows * d) * workload_.accumulator_bytes()};
  }
  Allocation attention_output() const {
    return {text_of(SavedTensor::attention_output), sizes_.features(sizes_.query_features())};
  }
  Allocation qkv() const { return {"q|k|v", sizes_.features(sizes_.qkv_features())}; }

  /// The partial embedding rows and their sum, which is the first block's input: with it, the heap also holds
  /// no more than one partial sum.
  MemorySnapshot embedding() const {
    Allocations allocations{partial_sum()};
    if (generation_.tp > 1)
      allocations.push_back({"residual stream", sizes_.full_hidden(), partial_sum().pool});
    return {"embedding", allocations};
  }

  /// Attention of one sequence; with several, of the last one, next to the outputs of the others.
  MemorySnapshot attention() const {
    Allocations allocations{hidden("block input"), hidden("norm1"), qkv(), attention_output(), scratch()};
    if (generation_.sequences == 1) {
      allocations.push_back({"heads", qkv().bytes});
      allocations.push_back({"lse", sizes_.shard().heads * sizes_.statistics(sizes_.shard().rows)});
    } else {
      allocations.push_back({"all outputs", attention_output().bytes});
    }
    return {"attention", allocations};
  }
  MemorySnapshot output() const {
    return {"attention partial sum",
            {hidden("block input"), hidden("norm1"), qkv(), attention_output(), partial_sum()}};
  }
  MemorySnapshot mlp() const {
    return {"mlp",
            {hidden("residual stream"),
             hidden("norm2"),
             {"mlp inner", sizes_.features(sizes_.inner_features())},
             {text_of(SavedTensor::down_input), sizes_.features(sizes_.shard().ffn)},
             partial_sum()}};
  }
  /// The head reads each sequence's last row; sampling uses fp64 logits, of the rank's shard or of all.
  MemorySnapshot head() const {
    const int64_t e = generation_.element_bytes, local = generation_.sequences * sizes_.shard().vocab;
    Allocations allocations{hidden("residual stream"), {text_of(SavedTensor::logits), local * e}};
    if (generation_.tp == 1 || !generation_.gathers_logits) {
      allocations.push_back({"fp64 logits", local * 8});
      return {"head", allocations};
    }
    const int64_t all = generation_.sequences * generation_.config.vocab_size;
    allocations.push_back({"staged logits", local * e, Pool::symmetric_heap});
    allocations.push_back({"gathered logits", all * e});
    allocations.push_back({"fp64 logits", all * 8});
    return {"head", allocations};
  }

  const Generation& generation_;
  Workload workload_;
  Sizes sizes_;
};

}  // namespace

GenerationPeak generation_peak(const Generation& generation, int rank) {
  const Forward forward(generation, rank);
  const MemorySnapshots snapshots = forward.snapshots();
  const auto peak_of = [&](Pool pool) {
    return *std::ranges::max_element(snapshots, {},
                                     [&](const MemorySnapshot& m) { return total(m.allocations, pool); });
  };
  return {forward.persistent(rank), peak_of(Pool::private_memory), peak_of(Pool::symmetric_heap)};
}

}  // namespace shardwise::plan
