#include "shardwise/cli/loaded_model.h"

#include "shardwise/base/clock.h"
#include "shardwise/base/files.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/cli/quantization_flags.h"
#include "shardwise/model/layout.h"
#include "shardwise/text/model_directory.h"

namespace shardwise::cli {

void add_model_flags(Flags& flags, ModelOptions& o) {
  flags.value("--model DIR", o.model, "directory of a checkpoint: DIR, DIR/step-N, or Hugging Face's");
  flags.value(
      "--tokenizer NAME", o.tokenizer,
      "bytes, a tokenizer.json or tokenizer.model, or a directory that holds one [--model's; where it has "
      "none, bytes]");
  flags.value("--dtype WORD", o.dtype, "fp32 or bf16; auto: bf16 for a bf16 model, else fp32 [auto]");
  flags.value("--load-format WORD", o.load_format,
              "auto: the files' weights; dummy: weights drawn from --seed, for benchmarks [auto]");
  flags.value("--quantize WORD", o.quantize, "int8 or int4: quantize the linear weights while they are read");
  flags.value("--group-size N", o.group_size,
              "with --quantize: input features that share a scale, 32, 64 or 128 [128; int8: a whole row]");
  flags.value("--tp,--tensor-parallel-size,--tp-size N", o.tp,
              "tensor-parallel ranks, started by this program [1]");
}

void check_word(const std::string& command, const std::string& flag, const std::string& value,
                const std::vector<std::string>& words) {
  std::string known;
  for (const std::string& word : words) {
    if (word == value) return;
    known.append(known.empty() ? "" : ", ").append(word);
  }
  TORCH_CHECK_VALUE(false, command, ": ", flag, " must be one of ", known, "; got ", value);
}

namespace {

/// What --quantize asks for, of weights that are in `config`.
std::optional<model::Quantization> asked(const std::string& command, const ModelOptions& o,
                                         const model::Config& config) {
  TORCH_CHECK_VALUE(o.quantize || !o.group_size, command, ": --group-size goes with --quantize; got ",
                    o.group_size.value_or(0), " without");
  if (!o.quantize) return config.quantization;
  check_word(command, "--quantize", *o.quantize, {"int8", "int4"});
  TORCH_CHECK_VALUE(!config.quantization, command, ": --quantize takes ordinary weights; got ",
                    config.quantization ? config.quantization->text() : "");
  return quantization_of(command, *o.quantize == "int8" ? 8 : 4, o.group_size);
}

}  // namespace

NamedModel::NamedModel(const std::string& command, const ModelOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.model, command, ": --model names the directory of a checkpoint; got none");
  check_word(command, "--dtype", options.dtype, {"auto", "fp32", "bf16"});
  check_word(command, "--load-format", options.load_format, {"auto", "dummy"});
  directory_ = checkpoint::resolve(*options.model);
  if (!is_dummy()) checkpoint::check(directory_, /*needs_state=*/false);
  config_ = model::load_config(directory_);
  config_.quantization = asked(command, options, config_);
  TORCH_CHECK_VALUE(!is_dummy() || !config_.quantization, command,
                    ": --load-format dummy draws ordinary weights; got quantized ones");
  model::check_ranks(command, config_, options.tp);
}

at::ScalarType NamedModel::dtype() const {
  // fp16 is for storage: its products are slow on CPUs and overflow early.
  const bool is_bf16 = options_.dtype == "bf16" || (options_.dtype == "auto" && config_.dtype == "bfloat16");
  return is_bf16 ? at::kBFloat16 : at::kFloat;
}

bool NamedModel::has_tokenizer() const {
  return options_.tokenizer || text::tokenizer_in(directory_);
}

std::unique_ptr<text::Tokenizer> NamedModel::tokenizer() const {
  return text::load_tokenizer(options_.tokenizer.value_or(has_tokenizer() ? directory_.string() : "bytes"));
}

std::string NamedModel::tokenizer_directory() const {
  const std::string& name = options_.tokenizer.value_or("bytes");
  if (name == "bytes") return directory_;
  return base::is_directory(name) ? name : text::directory_of(name);
}

checkpoint::LoadCost NamedModel::load(model::DecoderWeights& weights, uint64_t seed) const {
  const base::Stopwatch clock;
  checkpoint::Loaded own{};
  if (is_dummy()) {
    weights.initialize_(seed);
    own.seconds = clock.seconds();
  } else {
    own = checkpoint::load_weights(directory_, weights);
  }
  checkpoint::LoadCost cost = checkpoint::cost_of(own, weights);
  base::reset_peak();
  return cost;
}

}  // namespace shardwise::cli
