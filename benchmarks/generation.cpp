// One rank of the generation benchmark: a model with random weights.
//
//   bench_generation decode|prefill|read bf16|fp32|int8|int4|int4-g32 precise|int8 SHAPE.json
//
// decode: a step generates one token, with a context of 32 tokens and those of the previous steps. prefill: a
// step processes a prompt of 512 tokens. read: a step reads every weight once, a lower bound for the time of
// decode. Quantized weights have an int8 head; int8 as the third argument rounds activations.
#include "shardwise/bench/generation.h"
#include "benchmarks/worker.h"
#include "shardwise/base/memory_counter.h"

namespace {

using namespace shardwise;

constexpr int64_t kContext = 32, kPrompt = 512;

config::Config config_of(const std::string& shape, const std::string& format, bool int8_activations) {
  config::Config config = config::load_config(shape);
  if (format.starts_with("int")) {
    const bool is_int8 = format == "int8";
    config.quantization = {.bits = is_int8 ? 8 : 4,
                           .group_size = is_int8            ? 0
                                         : format == "int4" ? 128
                                                            : 32,
                           .lm_head = !config.tie_word_embeddings,
                           .embeddings = true,
                           .int8_head = true,
                           .int8_activations = int8_activations};
  }
  return config;
}

}  // namespace

int main(int argc, char** argv) {
  TORCH_CHECK_VALUE(argc == 5, "bench_generation: must get four arguments; got ", argc - 1);
  const std::string what = argv[1], format = argv[2], activations = argv[3], shape = argv[4];
  base::keep_freed_memory();
  base::install_memory_counter();
  const comm::Group group = bench::join(launch::launch_context_from_env());
  model::DecoderWeights weights(config_of(shape, format, activations == "int8"), group,
                                format == "fp32" ? at::kFloat : at::kBFloat16, model::WeightUse::inference);
  weights.initialize_(/*seed=*/1);
  bench::Texts text(weights, {.texts = 1, .context = what == "prefill" ? kPrompt : kContext});
  uint64_t sum = 0;
  const auto step = [&] {
    if (what == "decode") return text.decode();
    if (what == "prefill") return text.prefill();
    TORCH_CHECK_VALUE(what == "read", "bench_generation: must be decode, prefill or read; got ", what);
    sum += bench::read_once(weights);
  };
  bench::serve(group, step, [&] {
    return "\"last\": " + std::to_string(text.last()) + ", \"sum\": " + std::to_string(sum) +
           ", \"peak_bytes\": " + std::to_string(base::peak_bytes());
  });
}
