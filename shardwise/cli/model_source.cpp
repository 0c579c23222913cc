#include "shardwise/cli/model_source.h"

#include "shardwise/base/clock.h"
#include "shardwise/base/files.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/checkpoint/tied_head.h"
#include "shardwise/cli/quantization_flags.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/config/layout.h"
#include "shardwise/text/model_directory.h"

namespace shardwise::cli {

void add_tokenizer_flag(Flags& flags, std::optional<std::string>& tokenizer, const std::string& more) {
  flags.value("--tokenizer NAME", tokenizer,
              "bytes, a tokenizer.json or tokenizer.model file, or a directory with one" + more);
}

void add_model_flags(Flags& flags, ModelOptions& o) {
  flags.value("--model DIR", o.model, "checkpoint directory: DIR, DIR/step-N, or a Hugging Face directory");
  add_tokenizer_flag(flags, o.tokenizer, " [that of --model, else bytes]");
  flags.value("--dtype NAME", o.dtype, "fp32 or bf16; auto: bf16 for a bf16 model, else fp32 [auto]");
  flags.value("--load-format NAME", o.load_format,
              "auto: load the weights; dummy: random weights from --seed, for benchmarks [auto]");
  flags.value("--quantize NAME", o.quantize,
              "int8 or int4: quantize the linear weights while loading, dummy ones too");
  flags.value("--group-size N", o.group_size,
              "with --quantize: input features per scale: 32, 64 or 128 [128; int8: a scale per row]");
  flags.value("--head NAME", o.head,
              "with --quantize: format of lm_head and the embedding: int8 (a scale per row), int4 or none "
              "[int8]");
  flags.value("--activations NAME", o.activations, kActivationsHelp);
  add_tp_flag(flags, o.tp);
}

namespace {

/// Returns the quantization of the loaded weights: that of --quantize, else that of `config`.
std::optional<config::Quantization> loaded_quantization(const std::string& command, const ModelOptions& o,
                                                        const config::Config& config) {
  TORCH_CHECK_VALUE(o.quantize || !o.group_size, command, ": --group-size needs --quantize; got ",
                    o.group_size.value_or(0), " without [SW0097]");
  TORCH_CHECK_VALUE(o.quantize || !o.head, command, ": --head needs --quantize; got ", o.head.value_or(""),
                    " without [SW0708]");
  if (!o.quantize) return config.quantization;
  check_choice(command, "--quantize", *o.quantize, {"int8", "int4"});
  TORCH_CHECK_VALUE(!config.quantization, command, ": --quantize needs unquantized weights; got ",
                    config.quantization ? config.quantization->text() : "", " [SW0098]");
  return quantization_on_load(command, *o.quantize, o.group_size, o.head.value_or("int8"), config);
}

}  // namespace

ModelSource::ModelSource(const std::string& command, const ModelOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.model, command, ": --model must name a checkpoint directory; got none [SW0042]");
  check_choice(command, "--dtype", options.dtype, {"auto", "fp32", "bf16"});
  check_choice(command, "--load-format", options.load_format, {"auto", "dummy"});
  directory_ = checkpoint::resolve(*options.model);
  if (!is_dummy()) checkpoint::check(directory_, /*needs_state=*/false);
  config_ = config::load_config(directory_);
  config_.quantization = loaded_quantization(command, options, config_);
  TORCH_CHECK_VALUE(!is_dummy() || !config_.quantization || !config_.quantization->is_packed(), command,
                    ": --load-format dummy needs a model of unquantized weights; got ",
                    config_.quantization ? config_.quantization->text() : "", " [SW0099]");
  set_activations_(config_.quantization, command, options.activations);
  config::check_ranks(command, config_, options.tp);
}

at::ScalarType ModelSource::dtype() const {
  // fp16 is for storage only: fp16 GEMMs are slow on CPUs and overflow early.
  const bool is_bf16 = options_.dtype == "bf16" || (options_.dtype == "auto" && config_.dtype == "bfloat16");
  return is_bf16 ? at::kBFloat16 : at::kFloat;
}

void ModelSource::warn(const std::string& command) const {
  checkpoint::warn_of_missing_latest(*options_.model, directory_, command);
  config::warn_of_unknown_tokens(config_, command);
  if (!is_dummy()) checkpoint::warn_of_unused_head(directory_, command);
}

bool ModelSource::has_tokenizer() const {
  return options_.tokenizer || text::tokenizer_in(directory_);
}

std::unique_ptr<text::Tokenizer> ModelSource::tokenizer() const {
  return text::load_tokenizer(options_.tokenizer.value_or(has_tokenizer() ? directory_.string() : "bytes"));
}

std::string ModelSource::tokenizer_directory() const {
  const std::string& name = options_.tokenizer.value_or("bytes");
  if (name == "bytes") return directory_;
  return base::is_directory(name) ? name : text::directory_of(name);
}

checkpoint::LoadCost ModelSource::load(model::DecoderWeights& weights, uint64_t seed) const {
  const base::Stopwatch clock;
  checkpoint::LoadStats local{};
  if (is_dummy()) {
    weights.initialize_(seed);
    local.seconds = clock.seconds();
  } else {
    local = checkpoint::load_weights(directory_, weights);
  }
  checkpoint::LoadCost cost = checkpoint::cost_of(local, weights);
  base::reset_peak();
  if (comm::SymmetricHeap* heap = weights.group().symmetric_heap()) heap->reset_peak();
  return cost;
}

}  // namespace shardwise::cli
