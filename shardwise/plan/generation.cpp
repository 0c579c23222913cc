#include "shardwise/plan/generation.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "shardwise/plan/block_kind.h"
#include "shardwise/plan/routed_experts.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

/// One sequence with all rows, under TP, without experts.
Workload workload_of(const Generation& g) {
  Workload workload{.config = without_experts(g.config, g.config.num_hidden_layers - 1),
                    .tp = g.tp,
                    .parallelism = Parallelism::tp};
  workload.sequence_length = g.rows;
  workload.batch_size = 1;
  workload.element_bytes = g.element_bytes;
  return workload;
}

/// Query rows of one block of attention scores (kernels/attention_blocks.h).
constexpr int64_t kAttentionRows = 64;
constexpr int64_t kScaleBytes = 4;  // of a row of an int8 cache
/// Up to this many new rows of a sequence are attended one by one, from the cache itself (nn/cache.h).
constexpr int64_t kRowsOneByOne = 16;
constexpr int64_t kMaxDequantizedBytes = int64_t{4} << 20;

/// Returns the bytes of the fp32 scratch matrices of kernels/attention_blocks.h, whose rows are an odd number
/// of cache lines.
int64_t scratch_bytes(int64_t rows, int64_t columns) {
  return rows * (parts_of(columns, 16) | 1) * 64;
}

/// Returns the bytes of attention's scratch by tiles (kernels/attention_forward_tiles.cpp): tiles of keys,
/// values, probabilities and queries; a block's scores, which of them dropout keeps, and outputs.
int64_t tiled_attention_bytes(int64_t keys, int64_t d) {
  constexpr int64_t kPart = 32, kTileWords = 256, kBlockParts = 8, kItems = 4;
  const int64_t key_parts = parts_of(keys, kPart), d_parts = parts_of(d, kPart);
  const int64_t tiles = 4 * key_parts * d_parts + 2 * kBlockParts + 2 * kItems * d_parts;
  return scratch_bytes(tiles, kTileWords) +
         scratch_bytes(kBlockParts * (kPart + 1) + kItems * d_parts * kPart, kPart);
}

/// Returns the bytes of a product's rows in tiles of bf16, and of its fp32 sums with the panels that are
/// multiplied together (quant/bf16_product.cpp).
int64_t tiled_product_bytes(int64_t rows, int64_t columns) {
  const int64_t row_tiles = parts_of(rows, 16), blocks = parts_of(rows, 512);
  const int64_t panels = rows <= 256 ? 1 : 8, sum_rows = 16 * parts_of(row_tiles, blocks);
  return row_tiles * 16 * parts_of(columns, 32) * 32 * 2 + panels * sum_rows * 64 * 4;
}

class Forward {
 public:
  Forward(const Generation& generation, int rank)
      : generation_(generation), workload_(workload_of(generation)), sizes_(workload_, rank) {}

  Allocations persistent(int rank) const {
    const int64_t blocks = generation_.blocks > 0 ? generation_.blocks : generation_.config.num_hidden_layers;
    const int64_t per_token =
        blocks * cached_bytes_per_block(generation_.config, sizes_.shard().kv_heads,
                                        generation_.element_bytes, generation_.has_int8_cache);
    return {{"weights", weight_bytes(rank)},
            {"dequantized rows", dequantized_bytes()},
            {"keys and values", generation_.cached_tokens * per_token},
            {"rotary tables", rotary_bytes()}};
  }

  MemorySnapshots snapshots() const {
    MemorySnapshots all{attention(), output(), mlp_input(), mlp()};
    if (generation_.config.experts) all.push_back(experts());
    if (generation_.has_embedding) all.insert(all.begin(), embedding());
    if (generation_.has_head) all.push_back(head());
    if (!generation_.has_head)
      for (MemorySnapshot& snapshot : all) snapshot.allocations.push_back(message());
    return all;
  }

 private:
  int64_t blocks() const {
    return generation_.blocks > 0 ? generation_.blocks : generation_.config.num_hidden_layers;
  }
  int64_t weight_bytes(int rank) const {
    if (generation_.weight_bytes) return *generation_.weight_bytes;
    TORCH_INTERNAL_ASSERT(!generation_.config.experts, "the workload has none");
    return local_parameter_count(workload_, rank) * generation_.element_bytes;
  }
  /// Bytes of the cos and sin tables: half of the rotated elements each.
  int64_t rotary_bytes() const {
    const auto& latent = generation_.config.latent_attention;
    const auto rotated =
        latent ? latent->qk_rope_head_dim
               : static_cast<int64_t>(2 * config::inverse_frequencies(generation_.config).size());
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
  /// That of the only block is the sum of the partial embedding rows, which ranks have in the heap.
  Allocation block_input() const {
    const bool is_only = blocks() == 1 && generation_.has_embedding;
    return is_only && generation_.tp > 1 ? Allocation{"block input", 0} : hidden("block input");
  }
  Allocation partial_sum() const {
    return {"partial sum", sizes_.full_hidden(), workload_.partial_sum_pool()};
  }
  /// Widened keys and values of one head and the scores of a block of rows: per thread, and a rank has one.
  Allocation scratch() const {
    if (generation_.rows <= kRowsOneByOne) return {"attention scratch", 0};
    const int64_t keys = generation_.longest_cache, d = generation_.config.head_dim;
    if (generation_.attends_by_tiles) return {"attention scratch", tiled_attention_bytes(keys, d)};
    return {"attention scratch",
            (keys * (2 * d + kAttentionRows) + 2 * kAttentionRows * d) * workload_.accumulator_bytes()};
  }
  /// What a product with a local weight [out, in] needs beside its operands, if the weight is packed
  /// (quant::inference_format).
  Allocation product_workspace(int64_t out, int64_t in) const {
    return product_workspace(sizes_.shard().rows, out, in);
  }
  Allocation product_workspace(int64_t rows, int64_t out, int64_t in) const {
    const int64_t padding = 64 * parts_of(out, 64) - out;
    const bool is_packed = in % 2 == 0 && 8 * padding <= out;
    const bool uses_tiles = generation_.multiplies_by_tiles && is_packed;
    return {"product workspace", uses_tiles ? tiled_product_bytes(rows, in) : 0};
  }
  /// The longest sequence's keys and values of one layer, as attention of many new rows reads them.
  int64_t unpacked_cache_bytes() const {
    return (sizes_.key_features() + sizes_.value_features()) * generation_.longest_cache *
           generation_.element_bytes;
  }
  /// Latents of the rows and their norms, and the queries of one row of each sequence that read cached ones.
  Allocations latents() const {
    const auto& latent = generation_.config.latent_attention;
    if (!latent) return {};
    const int64_t of_query = sizes_.shard().heads * (latent->cached_features() + latent->kv_lora_rank);
    return {{"latents", 2 * sizes_.features(latent->q_lora_rank + latent->cached_features())},
            {"queries of latents", generation_.sequences * of_query * generation_.element_bytes}};
  }
  int64_t hidden_size() const { return generation_.config.hidden_size; }
  Allocation attention_output() const {
    return {text_of(SavedTensor::attention_output), sizes_.features(sizes_.output_features())};
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

  /// The residual stream that the next stage has not received yet, in a heap that nothing else uses.
  Allocation message() const { return {"message", sizes_.full_hidden(), Pool::symmetric_heap}; }

  /// Attention of one sequence; with several, of the last one, next to the outputs of the others.
  MemorySnapshot attention() const {
    Allocations allocations{block_input(), hidden("norm1"), qkv(), attention_output(), scratch()};
    const bool unpacks = generation_.has_int8_cache || generation_.config.latent_attention;
    if (unpacks && generation_.rows > kRowsOneByOne)
      allocations.push_back({"dequantized keys and values", unpacked_cache_bytes()});
    for (Allocation& allocation : latents()) allocations.push_back(std::move(allocation));
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
            {block_input(), hidden("norm1"), qkv(), attention_output(), partial_sum(),
             product_workspace(hidden_size(), sizes_.output_features())}};
  }
  MemorySnapshot mlp_input() const {
    const int64_t inner = sizes_.inner_features();
    return {"mlp input",
            {hidden("residual stream"),
             hidden("norm2"),
             {"mlp inner", sizes_.features(inner)},
             product_workspace(inner, hidden_size())}};
  }
  MemorySnapshot mlp() const {
    return {"mlp",
            {hidden("residual stream"),
             hidden("norm2"),
             {"mlp inner", sizes_.features(sizes_.inner_features())},
             {text_of(SavedTensor::down_input), sizes_.features(sizes_.shard().ffn)},
             partial_sum(),
             product_workspace(hidden_size(), sizes_.shard().ffn)}};
  }
  /// Rows in the order of their experts, what is inside those, and their results.
  MemorySnapshot experts() const {
    const config::Config& c = generation_.config;
    const RoutedExperts shard = routed_experts(c, {generation_.tp, generation_.ep}, generation_.rows);
    const auto features = [&](int64_t count) {
      return static_cast<int64_t>(shard.rows * static_cast<double>(count)) * generation_.element_bytes;
    };
    return {"experts",
            {hidden("residual stream"),
             hidden("norm2"),
             {text_of(SavedTensor::router_scores), sizes_.statistics(generation_.rows * c.experts->count)},
             {text_of(SavedTensor::expert_input), features(hidden_size())},
             {text_of(SavedTensor::expert_gate_and_up), features(2 * shard.features)},
             {text_of(SavedTensor::expert_down_input), features(shard.features)},
             {text_of(SavedTensor::expert_output), features(hidden_size())},
             partial_sum()}};
  }
  /// The head reads the rows whose next token is sampled; log probabilities widen the logits of one row.
  MemorySnapshot head() const {
    const int64_t e = generation_.element_bytes, local = sizes_.shard().vocab;
    const int64_t rows = generation_.sampled_rows, all = generation_.config.vocab_size;
    const bool gathers = generation_.tp > 1 && generation_.gathers_logits;
    Allocations allocations{hidden("residual stream"),
                            {"chosen rows and their norm", 2 * rows * hidden_size() * e},
                            {"logits", rows * local * e},
                            product_workspace(rows, local, hidden_size())};
    if (gathers) {
      allocations.push_back({"staged logits", rows * local * e, Pool::symmetric_heap});
      allocations.push_back({"gathered logits", rows * all * e});
    }
    if (generation_.wants_logprobs) allocations.push_back({"fp64 logits", 8 * (gathers ? all : local)});
    return {"head", allocations};
  }

  const Generation& generation_;
  Workload workload_;
  Sizes sizes_;
};

}  // namespace

int64_t cached_bytes_per_block(const config::Config& config, int64_t kv_heads, int64_t element_bytes,
                               bool has_int8_cache) {
  const auto row = [&](int64_t features) {
    return has_int8_cache ? features + kScaleBytes : features * element_bytes;
  };
  if (config.latent_attention) return row(config.latent_attention->cached_features());
  return 2 * kv_heads * row(config.head_dim);
}

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
