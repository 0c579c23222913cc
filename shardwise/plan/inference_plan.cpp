#include "shardwise/plan/inference_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "shardwise/config/parameters.h"
#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/operation_time.h"
#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

constexpr int64_t kPromptRows = 512;  // tokens of one forward (infer::Batching)
constexpr int64_t kGroupScaleBytes = 2, kCacheScaleBytes = 4;

/// Returns the bytes of a weight [out, in].
int64_t quantized_bytes(const config::Quantization& q, int64_t out, int64_t in) {
  const int64_t groups = out * (q.group_size == 0 ? 1 : parts_of(in, q.group_size));
  const int64_t zero_points = q.is_symmetric ? 0 : parts_of(groups * q.bits, 8);
  return parts_of(out * in * q.bits, 8) + groups * kGroupScaleBytes + zero_points;
}

int64_t bytes_of(const config::ParameterInfo& parameter, const config::Config& config,
                 int64_t element_bytes) {
  int64_t elements = 1;
  const std::vector<int64_t> local = parameter.rule.local_shape(parameter.shape, /*rank=*/0);
  for (const int64_t size : local) elements *= size;
  if (parameter.format == config::StorageFormat::dense) return elements * element_bytes;
  return quantized_bytes(config.quantization->of(parameter.name), local[0], local[1]);
}

/// A weight as it is stored.
struct StoredWeight {
  int64_t bytes, bits;  // in all; of an element
};

/// Returns rank 0's weights of a block's products and of the head, by module.
std::map<std::string, StoredWeight> stored_products(const config::Config& config, int64_t tp,
                                                    int64_t element_bytes) {
  std::map<std::string, StoredWeight> stored;
  for (const config::ParameterInfo& parameter :
       config::ParameterTable(config, config::make_layout(config, static_cast<int>(tp)))) {
    if (parameter.shape.size() != 2 || parameter.block.value_or(0) != 0) continue;
    std::string module = config::module_name(parameter.name);
    if (module == "embed_tokens" && config.tie_word_embeddings) module = "lm_head";
    const bool is_dense = parameter.format == config::StorageFormat::dense;
    stored[module] = {bytes_of(parameter, config, element_bytes),
                      is_dense ? 8 * element_bytes : config.quantization->of(parameter.name).bits};
  }
  return stored;
}

/// One replica.
class Replica {
 public:
  Replica(const InferenceTask& task, const InferenceDegrees& degrees, const Machine& machine)
      : task_(task),
        tp_(degrees.tp),
        texts_(parts_of(task.texts, degrees.replicas)),
        time_(machine, task.element_bytes),
        collectives_(machine, {.ranks = degrees.tp}),
        dense_(config::dense(task.config)),
        stored_(stored_products(task.config, degrees.tp, task.element_bytes)) {}

  InferenceMemory memory() const {
    Generation generation;
    generation.config = task_.config;
    generation.tp = static_cast<int>(tp_);
    generation.element_bytes = task_.element_bytes;
    generation.rows = std::max(texts_, std::min(kPromptRows, texts_ * task_.prompt_tokens));
    generation.sequences = generation.sampled_rows = texts_;
    generation.longest_cache = task_.prompt_tokens + task_.new_tokens;
    generation.cached_tokens = texts_ * generation.longest_cache;
    generation.has_int8_cache = task_.has_int8_cache;
    generation.weight_bytes = weight_bytes(task_.config, tp_, task_.element_bytes);
    const GenerationPeak peak = generation_peak(generation, /*rank=*/0);
    InferenceMemory memory{.weights = *generation.weight_bytes,
                           .cache = generation.cached_tokens * cached_bytes_per_token()};
    memory.buffers = peak.private_bytes() + peak.symmetric_heap_bytes() - memory.weights - memory.cache;
    return memory;
  }

  /// All prompts, in forwards of kPromptRows tokens, which need not be of one text.
  ForwardTime prompts() const {
    const int64_t tokens = texts_ * task_.prompt_tokens, rows = std::min(tokens, kPromptRows);
    const double forwards = static_cast<double>(tokens) / static_cast<double>(rows);
    ForwardTime one;
    for_each_operation(rows, [&](const Operation& operation, int64_t layer) {
      if (operation.kind == Operation::Kind::attention) {
        // Each text's own queries and keys, as one forward of its prompt.
        const Workload prompt = workload(task_.prompt_tokens, 1);
        for (const Operation& of : block_operations(prompt, 0, layer, CountedKeys::visible))
          if (of.kind == Operation::Kind::attention)
            one.compute += time_.inference(of, of.forward.bytes, 0) * static_cast<double>(texts_) / forwards;
      } else {
        one.compute += seconds(operation);
      }
    });
    one.tensor_parallel = collective_seconds(rows);
    return {forwards * one.compute + head_seconds(), forwards * one.tensor_parallel};
  }

  /// A token of each text, half of whose new tokens are generated.
  ForwardTime token() const {
    ForwardTime one;
    const int64_t context = task_.prompt_tokens + task_.new_tokens / 2;
    for_each_operation(texts_, [&](const Operation& operation, int64_t layer) {
      if (operation.kind == Operation::Kind::attention) {
        const int64_t keys = std::min(context, task_.config.window_of(layer).value_or(context));
        one.compute +=
            time_.cached_attention(cached_attention_flop(keys), texts_ * keys * cached_bytes_per_layer());
      } else {
        one.compute += seconds(operation);
      }
    });
    one.compute += head_seconds();
    one.tensor_parallel = collective_seconds(texts_);
    return one;
  }

 private:
  Workload workload(int64_t sequence_length, int64_t batch_size) const {
    Workload w;
    w.config = dense_;
    w.tp = static_cast<int>(tp_);
    w.parallelism = Parallelism::tp;
    w.sequence_length = sequence_length;
    w.batch_size = batch_size;
    w.element_bytes = task_.element_bytes;
    return w;
  }

  /// Calls f(operation, layer) for the embedding and the blocks of a forward of `rows` tokens.
  template <class F>
  void for_each_operation(int64_t rows, const F& f) const {
    const Workload w = workload(/*sequence_length=*/1, rows);
    for (const Operation& operation : embedding_operations(w, 0)) f(operation, 0);
    const Operations block = block_operations(w, 0, 0, CountedKeys::all);  // but for attention all are alike
    for (int64_t layer = 0; layer < dense_.num_hidden_layers; ++layer)
      for (const Operation& operation : block) f(operation, layer);
  }

  /// Seconds of an operation that is not attention; its weight is read as it is stored.
  double seconds(const Operation& operation) const {
    const bool is_product = operation.kind == Operation::Kind::product;
    if (!is_product) return time_.inference(operation, operation.forward.bytes, /*weight_bits=*/0);
    const StoredWeight& weight = stored_.at(operation.name);
    const int64_t dense = operation.weight_elements * task_.element_bytes;
    return time_.inference(operation, operation.forward.bytes - dense + weight.bytes, weight.bits);
  }

  /// Norm and head of a row for each text; the loss is not computed.
  double head_seconds() const {
    double sum = 0;
    for (const Operation& operation : head_operations(workload(1, texts_), 0))
      if (operation.name != "cross_entropy") sum += seconds(operation);
    return sum;
  }

  double collective_seconds(int64_t rows) const {
    const Workload w = workload(1, rows);
    return collectives_.of(embedding_communication(w, 0).forward) +
           static_cast<double>(dense_.num_hidden_layers) *
               collectives_.of(block_communication(w, 0, 0).forward);
  }

  /// One query of each text with `keys` keys: two products.
  double cached_attention_flop(int64_t keys) const {
    const auto features = static_cast<double>(rank_shard(workload(1, 1), 0).heads * dense_.head_dim);
    return 4 * features * static_cast<double>(texts_ * keys);
  }

  int64_t cached_bytes_per_layer() const {
    const int64_t d = dense_.head_dim, kv_heads = rank_shard(workload(1, 1), 0).kv_heads;
    return 2 * kv_heads * (task_.has_int8_cache ? d + kCacheScaleBytes : d * task_.element_bytes);
  }
  int64_t cached_bytes_per_token() const { return dense_.num_hidden_layers * cached_bytes_per_layer(); }

  const InferenceTask& task_;
  int64_t tp_, texts_;
  OperationTime time_;
  CollectiveTime collectives_;
  config::Config dense_;
  std::map<std::string, StoredWeight> stored_;  // the weights of a block and the head, by module
};

void check(const InferenceTask& task, const InferenceDegrees& degrees) {
  for (const int64_t size :
       {task.ranks, task.prompt_tokens, task.new_tokens, task.texts, degrees.tp, degrees.replicas})
    TORCH_CHECK_VALUE(size >= 1, "plan: ranks, tokens, texts and degrees must be positive; got ", size,
                      " [SW0770]");
  TORCH_CHECK_VALUE(task.texts <= kMostTokens / (task.prompt_tokens + task.new_tokens),
                    "plan: all texts must have at most ", kMostTokens, " tokens; got ", task.texts, " x ",
                    task.prompt_tokens + task.new_tokens, " [SW0771]");
}

}  // namespace

int64_t weight_bytes(const config::Config& config, int64_t tp, int64_t element_bytes) {
  int64_t bytes = 0;
  for (const config::ParameterInfo& parameter :
       config::ParameterTable(config, config::make_layout(config, static_cast<int>(tp))))
    bytes += bytes_of(parameter, config, element_bytes);
  return bytes;
}

InferencePlan evaluate(const InferenceTask& task, const InferenceDegrees& degrees, const Machine& machine) {
  check(task, degrees);
  const Replica replica(task, degrees, machine);
  return {degrees, replica.memory(), replica.prompts(), replica.token()};
}

}  // namespace shardwise::plan
