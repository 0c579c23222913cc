// One rank of the generation benchmark: a model with the shape of Llama-3.2-1B and random weights.
//
//   bench_generation decode|prefill|read [bf16|fp32]
//
// decode: a step generates one token, with a context of 32 tokens and those of the previous steps. prefill: a
// step processes a prompt of 512 tokens. read: a step reads every weight once, a lower bound for the time of
// decode.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include "benchmarks/worker.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/bench/probes.h"
#include "shardwise/infer/sharded_sampler.h"
#include "shardwise/model/decoder.h"

namespace {

using namespace shardwise;

constexpr int64_t kContext = 32, kPrompt = 512;

config::Config shape() {
  config::Config config = config::preset("llama-3.2-1b");
  config.max_position_embeddings = 4096;
  return config;
}

/// A sequence that is generated without end; its KV cache is truncated when it is full.
class Text {
 public:
  explicit Text(const model::DecoderWeights& weights) : weights_(weights) {
    const config::Config& config = weights.config();
    const int64_t kv_heads = weights.layout().kv_heads.range(weights.group().rank()).size();
    cache_ = nn::Cache::empty(config.num_hidden_layers, kv_heads, config.head_dim, /*capacity=*/1024,
                              weights.dtype());
  }

  void restart(int64_t length) {
    cache_.length = 0;
    read(length);
  }
  void read(int64_t rows) {
    if (cache_.length + rows > cache_.capacity()) cache_.length = kContext;
    nn::Step step(weights_.group(), rows);
    step.cached = {{&cache_, rows}};
    const at::Tensor ids = at::full({rows, 1}, last_, at::kLong);
    const at::Tensor last_row = at::full({1}, rows - 1, at::kLong);
    const at::Tensor logits =
        model::Decoder<nn::Invariant>(weights_).next_logits(ids, last_row, step).local();
    cache_.length += rows;
    last_ =
        infer::sample_tokens(logits.select(1, 0), weights_.layout().vocab, {{&text_, {}}}, weights_.group())
            .front()
            .id;
  }
  int64_t last() const { return last_; }

 private:
  const model::DecoderWeights& weights_;
  nn::Cache cache_;
  std::vector<int64_t> text_;
  int64_t last_ = 7;
};

uint64_t read_once(const model::DecoderWeights& weights) {
  uint64_t sum = 0;
  for (const nn::UsedParameter& used : weights.used_parameters())
    sum += bench::read_once(used.parameter->value);
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "decode", dtype = argc > 2 ? argv[2] : "bf16";
  const at::NoGradGuard no_grad;
  base::keep_freed_memory();
  base::install_memory_counter();
  const comm::Group group = bench::join(launch::launch_context_from_env());
  model::DecoderWeights weights(shape(), group, dtype == "bf16" ? at::kBFloat16 : at::kFloat);
  weights.initialize_(/*seed=*/1);
  Text text(weights);
  text.restart(kContext);
  uint64_t sum = 0;
  const auto step = [&] {
    if (what == "decode") return text.read(1);
    if (what == "prefill") return text.restart(kPrompt);
    TORCH_CHECK_VALUE(what == "read", "bench_generation: must be decode, prefill or read; got ", what);
    sum += read_once(weights);
  };
  bench::serve(group, step, [&] {
    return "\"last\": " + std::to_string(text.last()) + ", \"sum\": " + std::to_string(sum) +
           ", \"peak_bytes\": " + std::to_string(base::peak_bytes());
  });
}
