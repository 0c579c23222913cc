// `shardwise eval`: computes a model's perplexity on text.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/clock.h"
#include "shardwise/base/log.h"
#include "shardwise/cli/cache_dtype.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/device_choice.h"
#include "shardwise/cli/inference_mesh.h"
#include "shardwise/cli/load_json.h"
#include "shardwise/cli/model_source.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/stage_options.h"
#include "shardwise/cli/stages_table.h"
#include "shardwise/infer/evaluate.h"
#include "shardwise/infer/token_ids.h"
#include "shardwise/text/corpus.h"
#include "shardwise/text/invalid_utf8.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kWindow = 1024;

struct EvaluateOptions {
  ModelOptions model;
  StageOptions stages;
  std::vector<std::string> text;
  std::optional<int64_t> seq_len;
  int64_t batch_size = 4;
  std::string kv_cache_dtype = "auto";
  uint64_t seed = 0;
  bool json = false;
};

void add_flags(Flags& flags, EvaluateOptions& o) {
  add_model_flags(flags, o.model);
  add_stage_flags(flags, o.stages, "windows");
  flags.values("--text PATH", o.text, "files or directories; each file is one sequence");
  flags.value("--seq-len N", o.seq_len, "maximum context per predicted token [1024, or what fits]");
  flags.value("--batch-size N", o.batch_size, "windows of --seq-len tokens per forward pass [4]");
  flags.value("--kv-cache-dtype NAME", o.kv_cache_dtype, kCacheDtypeHelp);
  flags.value("--seed N", o.seed, "seed of the weights of --load-format dummy [0]");
  flags.on_off("--json", o.json, "print one JSON object instead of text");
}

/// The ids of each file.
struct EncodedText {
  std::vector<std::vector<int64_t>> sequences;
  text::InvalidUtf8 invalid_utf8;
};

/// Skips files of fewer than two tokens, which have nothing to predict.
EncodedText encoded_text(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer) {
  const text::Corpus corpus(paths);
  EncodedText encoded;
  for (int64_t file = 0; file < corpus.file_count(); ++file) {
    const std::string text = corpus.read_file(file);
    encoded.invalid_utf8.add(tokenizer, text, corpus.file_path(file));
    std::vector<int64_t> ids = tokenizer.encode(text);
    if (ids.size() >= 2) encoded.sequences.push_back(std::move(ids));
  }
  TORCH_CHECK_VALUE(!encoded.sequences.empty(),
                    "eval: --text must have at least two tokens; got fewer [SW0044]");
  return encoded;
}

struct EvaluateResult {
  int64_t sequences, tokens, predicted;
  double nll, seconds;
  checkpoint::LoadCost loaded;
};

/// Evaluates all sequences; the NLL is the mean over all predicted tokens.
EvaluateResult evaluate_sequences(const model::DecoderWeights& weights, const comm::Group& pipeline,
                                  const std::vector<std::vector<int64_t>>& sequences,
                                  const infer::EvaluationWindows& windows, bool shows) {
  EvaluateResult result{std::ssize(sequences), 0, 0, 0, 0, {}};
  for (const auto& sequence : sequences) result.tokens += std::ssize(sequence);
  const int64_t all = result.tokens - result.sequences;
  const base::Stopwatch clock;
  ProgressLine line;
  double sum = 0;
  for (const auto& sequence : sequences) {
    const auto evaluation = infer::evaluate(weights, pipeline, sequence, windows, [&](int64_t predicted) {
      const int64_t done = result.predicted + predicted;
      if (shows)
        line.show(fmt::format("eval: {} of {} tokens, {:.0f} tokens/s", done, all, done / clock.seconds()));
    });
    sum += evaluation.nll * static_cast<double>(evaluation.predicted);
    result.predicted += evaluation.predicted;
  }
  result.nll = sum / static_cast<double>(all);
  result.seconds = clock.seconds();
  return result;
}

std::string to_json(const EvaluateResult& r, const EvaluateOptions& o, const ModelSource& model,
                    const infer::EvaluationWindows& windows) {
  const nlohmann::ordered_json object{
      {"model", model.directory().string()},
      {"tp", o.model.tp},
      {"pp", o.stages.pp},
      {"dtype", model.dtype_name()},
      {"kv_cache_dtype", o.kv_cache_dtype == "auto" ? model.dtype_name() : o.kv_cache_dtype},
      {"quantization", quantization_json(model)},
      {"seq_len", windows.length},
      {"sequences", r.sequences},
      {"tokens", r.tokens},
      {"predicted_tokens", r.predicted},
      {"nll", r.nll},
      {"perplexity", infer::Evaluation{r.predicted, r.nll}.perplexity()},
      {"seconds", r.seconds},
      {"tokens_per_second", static_cast<double>(r.predicted) / r.seconds},
      {"load", load_json(r.loaded)}};
  return json_line(object);
}

std::string to_text(const EvaluateResult& r) {
  return fmt::format(
      "{} tokens of {} predicted: mean negative log-likelihood {:.6f}, perplexity {:.4f}; "
      "{:.0f} tokens/s\n",
      r.predicted, r.tokens, r.nll, infer::Evaluation{r.predicted, r.nll}.perplexity(),
      static_cast<double>(r.predicted) / r.seconds);
}

infer::EvaluationWindows windows_of(const EvaluateOptions& o, const config::Config& config) {
  const int64_t most = config.max_position_embeddings;
  const int64_t length = o.seq_len.value_or(std::min(kWindow, most));
  TORCH_CHECK_VALUE(length >= 1 && length <= most,
                    "eval: --seq-len must be from 1 to max_position_embeddings, ", most, "; got ", length,
                    " [SW0045]");
  TORCH_CHECK_VALUE(o.batch_size >= 1, "eval: --batch-size must be at least 1; got ", o.batch_size,
                    " [SW0046]");
  return {length, o.batch_size, cache_dtype_of("eval", "--kv-cache-dtype", o.kv_cache_dtype)};
}

}  // namespace

int evaluate_command(const Call& call) {
  EvaluateOptions o;
  RankOptions ranks;
  Flags flags("eval", "Computes a model's mean negative log-likelihood and perplexity on text.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  add_device_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("eval", ranks);
  TORCH_CHECK_VALUE(!o.text.empty(),
                    "eval: --text must name at least one file or directory; got none [SW0043]");
  const ModelSource model("eval", o.model);
  const infer::EvaluationWindows windows = windows_of(o, model.config());
  ranks.device = inference_device("eval", ranks.device, model);
  const auto tokenizer = model.tokenizer();
  const EncodedText encoded = encoded_text(o.text, *tokenizer);
  const auto& sequences = encoded.sequences;
  for (const auto& sequence : sequences) infer::check_token_ids(sequence, model.config(), "eval: the text's");
  const int64_t layers = model.config().num_hidden_layers, all_ranks = ranks_of(o.stages, o.model.tp);
  const config::Stages stages = stages_of("eval", o.stages, layers);
  const launch::LaunchContext context = launch_context_for(all_ranks);
  return run_on_mesh(
      {context, all_ranks, ranks, call.argv},
      [&](const comm::Mesh::Connect& connect) {
        return inference_mesh(stages.pp, o.model.tp, context.rank, context.world_size, connect);
      },
      [&](const comm::Mesh& mesh) {
        const comm::Group& world = world_of(mesh);
        const bool prints = mesh.rank() == 0;
        if (prints) {
          model.warn("eval");
          encoded.invalid_utf8.warn("eval");
          if (stages.pp > 1) base::log_info(stages_table("eval", stages, layers, o.model.tp));
        }
        model::DecoderWeights weights = weights_of_stage(model, stages, mesh);
        const checkpoint::LoadCost loaded = model.load(weights, o.seed, world);
        checkpoint::log_load("eval", model.directory(), loaded, world);
        EvaluateResult result =
            evaluate_sequences(weights, mesh.group(train::kPipelineAxis), sequences, windows, prints);
        result.loaded = loaded;
        if (prints) print(o.json ? to_json(result, o, model, windows) : to_text(result));
      });
}

}  // namespace shardwise::cli
