// `shardwise quantize`: writes a model with int8 or int4 linear weights to a new directory.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/quantize.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/quantization_flags.h"
#include "shardwise/cli/write_progress.h"
#include "shardwise/config/config.h"

namespace shardwise::cli {
namespace {

using checkpoint::WriteSummary;

struct QuantizeOptions {
  std::optional<std::string> in, out;
  int64_t bits = 4;
  std::optional<int64_t> group_size;
  std::optional<std::string> head;
  bool embeddings = false, json = false;
};

void add_flags(Flags& flags, QuantizeOptions& o) {
  flags.argument("IN", o.in,
                 "model directory: Hugging Face, DIR/step-N, DIR, or the output of shardwise shard");
  flags.argument("OUT", o.out, "directory to write; it must not exist");
  flags.value("--bits N", o.bits, "bits per weight: 8 or 4 [4]");
  flags.value("--group-size N", o.group_size,
              "input features per scale: 32, 64 or 128 [128; with --bits 8 a scale per row]");
  flags.value(
      "--head NAME", o.head,
      "format of lm_head: int8 (a scale per row), int4 or none [int8; none if it is the embedding, or "
      "if the vocabulary is not a multiple of 4 tokens]");
  flags.on_off("--embeddings", o.embeddings,
               "quantize the embedding too, like lm_head; other programs cannot read it");
  flags.on_off("--json", o.json, "print a JSON summary");
}

/// Errors: c10::ValueError naming the flag and its rule.
void check(const QuantizeOptions& o) {
  TORCH_CHECK_VALUE(o.in && o.out,
                    "quantize: IN and OUT must name the directories to read and to write; got ",
                    o.in ? "one" : "none", " [SW0093]");
}

/// Returns the format of lm_head without --head: int8 where the files can store it.
std::string default_head(const config::Config& model, bool quantizes_embeddings) {
  constexpr int64_t kValuesPerWord = 4;  // of int8
  const bool can_store = model.vocab_size % kValuesPerWord == 0;
  return can_store && (quantizes_embeddings || !model.tie_word_embeddings) ? "int8" : "none";
}

config::Quantization quantization_for(const QuantizeOptions& o, const config::Config& model) {
  config::Quantization how = quantization_of("quantize", o.bits, o.group_size);
  how.file_format = config::Quantization::FileFormat::gptq;
  set_head_(how, "quantize", o.head.value_or(default_head(model, o.embeddings)));
  how.embeddings = o.embeddings;
  how.lm_head &= !model.tie_word_embeddings || !o.embeddings;
  return how;
}

std::string to_text(const QuantizeOptions& o, const config::Quantization& how, const WriteSummary& written,
                    double seconds) {
  return fmt::format("{}, {} tensors, {:.2f} MB: {} ({:.1f} s)\n", how.text(), written.tensors,
                     static_cast<double>(written.bytes) / 1e6, *o.out, seconds);
}

std::string to_json(const QuantizeOptions& o, const config::Quantization& how, const WriteSummary& written,
                    double seconds) {
  const nlohmann::ordered_json json{{"out", *o.out},
                                    {"bits", how.bits},
                                    {"group_size", how.group_size == 0 ? -1 : how.group_size},
                                    {"tensors", written.tensors},
                                    {"bytes", written.bytes},
                                    {"seconds", seconds}};
  return json_line(json);
}

}  // namespace

int quantize_command(const Call& call) {
  QuantizeOptions options;
  Flags flags("quantize", "Writes a model with int8 or int4 linear weights in the GPTQ format.");
  add_flags(flags, options);
  if (!flags.parse(call.arguments)) return 0;
  check(options);
  quantization_for(options, config::Config());  // refuses bad flags before the directory is read
  const base::Stopwatch clock;
  const auto in = checkpoint::resolve(*options.in);
  checkpoint::warn_of_missing_latest(*options.in, in, "quantize");
  const auto how = quantization_for(options, config::load_config(in));
  WriteProgress write_progress("quantize");
  const WriteSummary written = checkpoint::quantize(in, *options.out, how, write_progress.on_progress());
  print(options.json ? to_json(options, how, written, clock.seconds())
                     : to_text(options, how, written, clock.seconds()));
  return 0;
}

}  // namespace shardwise::cli
