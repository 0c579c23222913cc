#include "shardwise/cli/model_source.h"

#include "shardwise/base/clock.h"
#include "shardwise/base/files.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/checkpoint/collective_errors.h"
#include "shardwise/checkpoint/panel_index.h"
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
  add_dtype_flag(flags, o.dtype);
  flags.value("--load-format NAME", o.load_format,
              "auto: load the weights; dummy: random weights from --seed, for benchmarks [auto]");
  add_quantize_flags(flags, o);
  flags.value("--activations NAME", o.activations, kActivationsHelp);
  add_tp_flag(flags, o.tp);
}

void add_dtype_flag(Flags& flags, std::string& dtype) {
  flags.value("--dtype NAME", dtype, "fp32 or bf16; auto: bf16 for a bf16 model, else fp32 [auto]");
}

void add_quantize_flags(Flags& flags, ModelOptions& o) {
  flags.value("--quantize NAME", o.quantize,
              "int8 or int4: quantize the linear weights while loading, dummy ones too");
  flags.value("--group-size N", o.group_size,
              "with --quantize: input features per scale: 32, 64 or 128 [128; int8: a scale per row]");
  flags.value("--head NAME", o.head,
              "with --quantize: format of lm_head and the embedding: int8 (a scale per row), int4 or none "
              "[int8]");
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

/// Returns `o` with the options with which the panel files were written. Errors: c10::ValueError if `o` has
/// others.
ModelOptions panel_options(const std::string& command, ModelOptions o,
                           const checkpoint::PanelOptions& written) {
  const std::string& directory = *o.model;
  check_tp_of_panels(command, directory, o.tp, written);
  TORCH_CHECK_VALUE(o.dtype == "auto" || o.dtype == written.dtype, command,
                    ": --dtype must be that of the panel files in ", directory, ", ", written.dtype, "; got ",
                    o.dtype, " [SW0741]");
  const bool is_quantized_anew = o.quantize || o.group_size || o.head;
  TORCH_CHECK_VALUE(!is_quantized_anew, command,
                    ": --quantize, --group-size and --head are those of the panel files in ", directory,
                    ", and cannot be given; got ", o.quantize.value_or(o.head.value_or("--group-size")),
                    " [SW0742]");
  o.dtype = written.dtype;
  o.quantize = written.quantize;
  o.group_size = written.group_size;
  o.head = written.head;
  return o;
}

}  // namespace

void check_tp_of_panels(const std::string& command, const std::string& directory, int64_t tp,
                        const checkpoint::PanelOptions& written) {
  TORCH_CHECK_VALUE(tp == written.tp, command, ": --tp must be that of the panel files in ", directory, ", ",
                    written.tp, "; got ", tp, " [SW0740]");
}

std::optional<int64_t> tp_of_panels(const ModelOptions& options) {
  if (!options.model || options.load_format == "dummy") return std::nullopt;
  const std::filesystem::path directory = checkpoint::resolve(*options.model);
  if (!checkpoint::has_panel_files(directory)) return std::nullopt;
  return checkpoint::check_panel_files(directory).tp;
}

ModelSource::ModelSource(const std::string& command, const ModelOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.model, command, ": --model must name a checkpoint directory; got none [SW0042]");
  check_choice(command, "--dtype", options.dtype, {"auto", "fp32", "bf16"});
  check_choice(command, "--load-format", options.load_format, {"auto", "dummy"});
  directory_ = checkpoint::resolve(*options.model);
  maps_panels_ = !is_dummy() && checkpoint::has_panel_files(directory_);
  if (maps_panels_) {
    options_ = panel_options(command, options, checkpoint::check_panel_files(directory_));
  } else if (!is_dummy()) {
    checkpoint::check(directory_, /*needs_state=*/false);
  }
  config_ = config::load_config(directory_);
  config_.quantization = loaded_quantization(command, options_, config_);
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
  if (!is_dummy() && !maps_panels_) checkpoint::warn_of_unused_head(directory_, command);
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

checkpoint::LoadCost ModelSource::load(model::DecoderWeights& weights, uint64_t seed,
                                       const comm::Group& world) const {
  return fill(weights, seed, checkpoint::load_weights, world);
}

checkpoint::LoadCost ModelSource::map(model::DecoderWeights& weights, uint64_t seed,
                                      const comm::Group& world) const {
  return fill(weights, seed, checkpoint::map_weights, world);
}

checkpoint::LoadCost ModelSource::fill(model::DecoderWeights& weights, uint64_t seed, Load* load,
                                       const comm::Group& world) const {
  const base::Stopwatch clock;
  checkpoint::LoadStats local{};
  if (is_dummy()) {
    weights.initialize_(seed);
    local.seconds = clock.seconds();
  } else {
    checkpoint::ValidationErrors errors;  // of this stage
    errors.collect([&] { local = load(directory_, weights); });
    errors.raise_on_any_rank(world);
  }
  checkpoint::LoadCost cost = checkpoint::cost_of(local, weights, world);
  base::reset_peak();
  if (comm::SymmetricHeap* heap = weights.group().symmetric_heap()) heap->reset_peak();
  return cost;
}

}  // namespace shardwise::cli
