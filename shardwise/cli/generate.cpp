// `shardwise generate`: continues prompts from a checkpoint.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/log.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/continued_text.h"
#include "shardwise/cli/generate_memory.h"
#include "shardwise/cli/generate_requests.h"
#include "shardwise/cli/load_figures.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"

namespace shardwise::cli {
namespace {

using Json = nlohmann::ordered_json;

/// All that a rank needs, with every input checked.
struct Job {
  GenerateOptions options;
  NamedModel model;
  std::unique_ptr<text::Tokenizer> tokenizer;  // null where ids need none
  std::vector<Prompt> prompts;
  std::vector<infer::Request> requests;
  std::vector<int64_t> end_ids;

  infer::Batching batching() const { return {options.batch_size, options.chunk}; }
  /// By rank, in bytes.
  std::vector<int64_t> expected_peaks(const checkpoint::LoadCost& loaded) const {
    const int tp = static_cast<int>(options.model.tp);
    plan::Generation batch = largest_batch(model.config(), requests, batching(), tp,
                                           static_cast<int64_t>(c10::elementSize(model.dtype())));
    std::vector<int64_t> peaks;
    for (int rank = 0; rank < tp; ++rank) {
      if (model.config().quantization) batch.weight_bytes = loaded.weight_bytes[rank];
      peaks.push_back(plan::generation_peak(batch, rank).own_bytes());
    }
    return peaks;
  }
};

std::unique_ptr<text::Tokenizer> tokenizer_of(const GenerateOptions& o, const NamedModel& model) {
  const bool needs_one = !o.prompt_ids || model.has_tokenizer();
  TORCH_CHECK_VALUE(
      needs_one || o.stop.empty(),
      "generate: --stop needs a tokenizer, by --tokenizer or in the model's directory; got none");
  return needs_one ? model.tokenizer() : nullptr;
}

Job make_job(const GenerateOptions& o) {
  check(o);
  const NamedModel model("generate", o.model);
  const infer::GenerationConfig defaults = infer::read_generation_config(model.directory());
  auto tokenizer = tokenizer_of(o, model);
  std::vector<Prompt> prompts = read_prompts(o, model, tokenizer.get());
  std::vector<infer::Request> requests = make_requests(prompts, o, defaults, model.config());
  std::vector<int64_t> end_ids = defaults.end_ids.empty() ? model.config().eos_token_id : defaults.end_ids;
  if (o.ignore_eos) end_ids.clear();
  return {o, model, std::move(tokenizer), std::move(prompts), std::move(requests), std::move(end_ids)};
}

Json per_second(int64_t tokens, double seconds) {
  return seconds > 0 ? Json(static_cast<double>(tokens) / seconds) : Json();
}

/// What is said of one continuation.
Json result_of(const Job& job, size_t index, const infer::Completion& continuation,
               const ContinuedText* text) {
  Json result{{"prompt_ids", job.requests[index].prompt}, {"token_ids", continuation.ids}};
  const Prompt& prompt = job.prompts[index / job.options.num_return];
  if (prompt.text) result["prompt"] = *prompt.text;
  result["text"] = text ? Json(text->text()) : Json();
  result["finish_reason"] = continuation.finish_reason == infer::FinishReason::length ? "length" : "stop";
  if (job.options.logprobs) result["logprobs"] = continuation.logprobs;
  return result;
}

/// What all ranks have seen of a run.
struct RunFigures {
  checkpoint::LoadCost loaded;
  infer::Timings timings;
  std::vector<int64_t> peaks;  // of memory, by rank
};

Json to_json(const Job& job, const RunFigures& figures) {
  const auto& [loaded, timings, peaks] = figures;
  return {{"model", job.model.directory().string()},
          {"tp", job.options.model.tp},
          {"dtype", job.model.dtype_name()},
          {"quantization", quantization_json(job.model)},
          {"load", load_json(loaded)},
          {"memory", {{"peak_bytes", peaks}, {"expected_peak_bytes", job.expected_peaks(loaded)}}},
          {"prefill",
           {{"tokens", timings.read_tokens},
            {"seconds", timings.read_seconds},
            {"tokens_per_second", per_second(timings.read_tokens, timings.read_seconds)}}},
          {"decode",
           {{"tokens", timings.written_tokens},
            {"seconds", timings.written_seconds},
            {"tokens_per_second", per_second(timings.written_tokens, timings.written_seconds)}}}};
}

/// One line for people, beside whatever standard output holds.
void log_speed(const infer::Timings& t) {
  const auto part = [](const char* what, int64_t tokens, double seconds) {
    const double rate = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
    return fmt::format("{} {} tokens in {:.2f} s ({:.1f}/s)", what, tokens, seconds, rate);
  };
  base::log_info("generate: " + part("read", t.read_tokens, t.read_seconds) + ", " +
                 part("wrote", t.written_tokens, t.written_seconds));
}

/// The continuations on one rank: all follow the texts where one may be stopped, rank 0 shows them.
class Continuing {
 public:
  Continuing(const Job& job, const comm::Group& group)
      : job_(job),
        shows_(group.rank() == 0),
        streams_(shows_ && !job.options.json && job.requests.size() == 1) {
    if (!job.tokenizer || (!shows_ && job.options.stop.empty())) return;
    for (size_t i = 0; i < job.requests.size(); ++i) texts_.emplace_back(*job.tokenizer, job.options.stop);
  }

  infer::Generated run(const model::DecoderWeights& weights) {
    if (streams_ && job_.prompts[0].text && !job_.options.chat) print(*job_.prompts[0].text);
    infer::Generated generated =
        infer::generate(weights, job_.requests, job_.end_ids, job_.batching(),
                        [this](size_t request, int64_t id) { return take(request, id); });
    int64_t unknown = 0;
    for (ContinuedText& text : texts_) {
      show(text.finish());
      unknown += text.unknown();
    }
    show("\n");
    if (shows_ && unknown > 0) {
      base::log_warning(
          fmt::format("generate: {} tokens are none of the tokenizer's; --tokenizer names the one that the "
                      "model was trained with",
                      unknown));
    }
    return generated;
  }

  void print_results(const std::vector<infer::Completion>& texts, const RunFigures& figures) const {
    if (shows_) log_speed(figures.timings);
    if (!shows_ || streams_) return;
    Json results = Json::array();
    for (size_t i = 0; i < texts.size(); ++i)
      results.push_back(result_of(job_, i, texts[i], texts_.empty() ? nullptr : &texts_[i]));
    if (!job_.options.json) {
      for (const Json& result : results) print(json_line(result));
      return;
    }
    Json document = to_json(job_, figures);
    if (results.size() == 1) {
      document.update(results[0]);
    } else {
      document["results"] = results;
    }
    print(json_line(document));
  }

 private:
  bool take(size_t request, int64_t id) {
    if (texts_.empty()) {
      show((is_first_ ? "" : ",") + std::to_string(id));
      is_first_ = false;
      return true;
    }
    show(texts_[request].push(id));
    return !texts_[request].is_stopped();
  }
  void show(const std::string& text) const {
    if (streams_ && !text.empty()) print(text);
  }

  const Job& job_;
  bool shows_, streams_, is_first_ = true;
  std::vector<ContinuedText> texts_;
};

void generate_rank(const Job& job, const comm::Group& group) {
  model::DecoderWeights weights(job.model.config(), group, job.model.dtype());
  const checkpoint::LoadCost loaded = job.model.load(weights, job.options.seed);
  checkpoint::log_load("generate", job.model.directory(), loaded, group);
  Continuing continuing(job, group);
  const infer::Generated generated = continuing.run(weights);
  continuing.print_results(generated.texts, {loaded, generated.timings, peaks_of_ranks(group)});
}

}  // namespace

int generate_command(const Call& call) {
  GenerateOptions options;
  RankOptions ranks;
  Flags flags(
      "generate",
      "Continues texts from a checkpoint. One text is shown as it comes; of several each is a line of "
      "JSON.");
  add_flags(flags, options);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("generate", ranks);
  const Job job = make_job(options);
  return run_on_ranks({place_for(options.model.tp), options.model.tp, ranks, call.argv},
                      [&](const comm::Group& group) { generate_rank(job, group); });
}

}  // namespace shardwise::cli
