// `shardwise generate`: generates text from prompts.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "shardwise/base/log.h"
#include "shardwise/cli/auto_generation.h"
#include "shardwise/cli/cache_dtype.h"
#include "shardwise/cli/commands.h"
#include "shardwise/cli/device_choice.h"
#include "shardwise/cli/generate_memory.h"
#include "shardwise/cli/generate_requests.h"
#include "shardwise/cli/inference_mesh.h"
#include "shardwise/cli/load_json.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/planned_generation.h"
#include "shardwise/cli/profile_report.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/shared_input.h"
#include "shardwise/cli/stages_table.h"
#include "shardwise/cli/streaming_detokenizer.h"
#include "shardwise/cli/units.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/shm/limits.h"
#include "shardwise/text/invalid_utf8.h"

namespace shardwise::cli {
namespace {

using namespace std::string_literals;
using Json = nlohmann::ordered_json;

/// The checked inputs of every rank.
struct GenerateJob {
  GenerateOptions options;
  ModelSource model;
  config::Stages stages;
  std::unique_ptr<text::Tokenizer> tokenizer;  // null for a prompt of ids without a tokenizer
  std::vector<Prompt> prompts;
  std::vector<infer::Request> requests;
  std::vector<int64_t> end_ids;
  infer::GenerationConfig defaults;
  std::vector<std::string> stops;

  infer::Batching batching() const {
    return {options.batch_size, options.chunk, options.speculate,
            cache_dtype_of("generate", "--kv-cache-dtype", options.kv_cache_dtype)};
  }
  /// Returns whether the result is one sequence and not a list. A batch is one, however short.
  bool is_single() const { return requests.size() == 1 && !options.batch_file; }
  /// Returns the planned peak memory of each rank. Collective. `weights` need not be loaded.
  PlannedMemories planned(const model::DecoderWeights& weights, const comm::Mesh& mesh) const {
    const int64_t mapped = model.maps_panels() ? checkpoint::mapped_bytes(weights) : 0;
    const auto weight_bytes = comm::gather_values(checkpoint::weight_bytes(weights) - mapped, world_of(mesh));
    return planned_memory(largest_batches(weights, requests, batching(), stages), stages, weight_bytes, mesh);
  }
};

std::unique_ptr<text::Tokenizer> tokenizer_of(const GenerateOptions& o, const ModelSource& model,
                                              const std::vector<std::string>& stops) {
  const bool needs_one = !o.prompt_ids || model.has_tokenizer();
  TORCH_CHECK_VALUE(needs_one || stops.empty(),
                    "generate: --stop and stop_strings of generation_config.json need a tokenizer, by "
                    "--tokenizer or in the model's "
                    "directory; got none [SW0062]");
  return needs_one ? model.tokenizer() : nullptr;
}

GenerateJob make_job(GenerateOptions o, const launch::LaunchContext& context) {
  check(o);
  const ModelSource model("generate", o.model);
  const config::Stages stages = stages_of("generate", o.stages, model.config().num_hidden_layers);
  infer::GenerationConfig defaults = infer::read_generation_config(model.directory());
  std::vector<std::string> stops = o.stop.empty() ? defaults.stop_strings : o.stop;
  auto tokenizer = tokenizer_of(o, model, stops);
  const int64_t most_ranks = o.automatic.is_on ? comm::shm::kMaxRanks : ranks_of(o.stages, o.model.tp);
  if (const auto flag = o.input_flag()) o.input = shared_input("generate: " + *flag, context, most_ranks);
  std::vector<Prompt> prompts = read_prompts(o, tokenizer.get(), model.tokenizer_directory());
  std::vector<infer::Request> requests = make_requests(prompts, o, defaults, model.config());
  std::vector<int64_t> end_ids =
      defaults.eos_token_ids.empty() ? model.config().eos_token_id : defaults.eos_token_ids;
  if (o.ignore_eos) end_ids.clear();
  return {o,
          model,
          stages,
          std::move(tokenizer),
          std::move(prompts),
          std::move(requests),
          std::move(end_ids),
          std::move(defaults),
          std::move(stops)};
}

Json per_second(int64_t tokens, double seconds) {
  return seconds > 0 ? Json(static_cast<double>(tokens) / seconds) : Json();
}

Json result_of(const GenerateJob& job, size_t index, const infer::Completion& completion,
               const StreamingDetokenizer* text) {
  Json result{{"prompt_ids", job.requests[index].prompt}, {"token_ids", completion.token_ids}};
  const Prompt& prompt = job.prompts[index / job.options.num_return];
  if (prompt.text) result["prompt"] = *prompt.text;
  result["text"] = text ? Json(text->text()) : Json();
  result["finish_reason"] = completion.finish_reason == infer::FinishReason::length ? "length" : "stop";
  if (job.options.logprobs) result["logprobs"] = completion.logprobs;
  return result;
}

/// Planned and measured figures of a run, over all ranks.
struct RunFigures {
  PlannedMemories planned;
  GenerationTimes times;
  checkpoint::LoadCost loaded;
  infer::Timings timings;
  std::vector<PeakMemory> peaks;  // by rank
};

/// Returns each rank's peaks: their sum, and by pool. Over MPI the sum is that of private memory.
Json memory_json(const RunFigures& figures) {
  Json memory;
  for (const PeakMemory& peak : figures.peaks) {
    memory["peak_bytes"].push_back(peak.private_bytes + peak.symmetric_heap_bytes.value_or(0));
    memory["peak_private_bytes"].push_back(peak.private_bytes);
    if (peak.symmetric_heap_bytes) memory["peak_symmetric_heap_bytes"].push_back(*peak.symmetric_heap_bytes);
  }
  for (const PlannedMemory& planned : figures.planned)
    memory["expected_peak_bytes"].push_back(planned.bytes());
  return memory;
}

Json speed_json(int64_t tokens, double seconds) {
  return {{"tokens", tokens}, {"seconds", seconds}, {"tokens_per_second", per_second(tokens, seconds)}};
}

Json document_of(const GenerateJob& job, const RunFigures& figures) {
  const infer::Timings& timings = figures.timings;
  Json json;
  if (!figures.planned.empty()) json["expected_memory"] = to_json(figures.planned);
  json.update({{"model", job.model.directory().string()},
               {"tp", job.options.model.tp},
               {"pp", job.stages.pp},
               {"dtype", job.model.dtype_name()},
               {"kv_cache_dtype",
                job.options.kv_cache_dtype == "auto" ? job.model.dtype_name() : job.options.kv_cache_dtype},
               {"quantization", quantization_json(job.model)},
               {"load", load_json(figures.loaded)},
               {"memory", memory_json(figures)},
               {"prefill", speed_json(timings.prompt_tokens, timings.prefill_seconds)},
               {"decode", speed_json(timings.generated_tokens, timings.decode_seconds)}});
  json.update(to_json(figures.times, timings));
  if (job.options.speculate > 0)
    json["speculation"] = {{"drafted", timings.drafted_tokens}, {"accepted", timings.accepted_tokens}};
  return json;
}

void log_speed(const infer::Timings& t, bool speculates) {
  const auto part = [](const char* what, int64_t tokens, double seconds) {
    const double rate = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
    return fmt::format("{} {} tokens in {:.2f} s ({:.1f}/s)", what, tokens, seconds, rate);
  };
  std::string text = "generate: " + part("prefill", t.prompt_tokens, t.prefill_seconds) + ", " +
                     part("decode", t.generated_tokens, t.decode_seconds);
  if (speculates)
    text += fmt::format(", accepted {} of {} drafted tokens", t.accepted_tokens, t.drafted_tokens);
  base::log_info(text);
}

/// Logs the memory of the rank that needs the most, and the times, beside what was planned.
void log_compared(const RunFigures& figures) {
  if (figures.planned.empty()) return;
  const auto bytes = [](const PeakMemory& peak) {
    return peak.private_bytes + peak.symmetric_heap_bytes.value_or(0);
  };
  base::log_info(
      fmt::format("generate: peak memory: {} measured, {} planned{}",
                  in_megabytes(bytes(*std::ranges::max_element(figures.peaks, {}, bytes))),
                  in_megabytes(std::ranges::max_element(figures.planned, {}, &PlannedMemory::bytes)->bytes()),
                  compared_text(figures.times, figures.timings)));
}

/// Generation on one rank. Every rank detokenizes if there are stop strings; rank 0 prints.
class RankGeneration {
 public:
  RankGeneration(const GenerateJob& job, const comm::Mesh& mesh)
      : job_(job),
        pipeline_(mesh.group(train::kPipelineAxis)),
        prints_(mesh.rank() == 0),
        streams_(prints_ && !job.options.json && job.is_single()) {
    if (!job.tokenizer || (!prints_ && job.stops.empty())) return;
    for (size_t i = 0; i < job.requests.size(); ++i) texts_.emplace_back(*job.tokenizer, job.stops);
  }

  infer::Generated run(const model::DecoderWeights& weights) {
    if (streams_ && job_.prompts[0].text && !job_.options.chat) print(*job_.prompts[0].text);
    infer::Generated generated =
        infer::generate(weights, pipeline_, job_.requests, job_.end_ids, job_.batching(),
                        [this](size_t request, int64_t id) { return on_token(request, id); });
    int64_t unknown = 0;
    for (StreamingDetokenizer& text : texts_) {
      show(text.finish());
      unknown += text.unknown();
    }
    show("\n");
    if (prints_ && unknown > 0) {
      base::log_warning(fmt::format(
          "generate: {} tokens are outside the tokenizer's vocabulary; give --tokenizer the one that "
          "the model was trained with [SW0383]",
          unknown));
    }
    return generated;
  }

  void print_results(const std::vector<infer::Completion>& completions, const RunFigures& figures) const {
    if (prints_) {
      log_speed(figures.timings, job_.options.speculate > 0);
      log_compared(figures);
    }
    if (!prints_ || streams_) return;
    Json results = Json::array();
    for (size_t i = 0; i < completions.size(); ++i)
      results.push_back(result_of(job_, i, completions[i], texts_.empty() ? nullptr : &texts_[i]));
    if (!job_.options.json) {
      for (const Json& result : results) print(json_line(result));
      return;
    }
    Json document = document_of(job_, figures);
    if (job_.is_single()) {
      document.update(results[0]);
    } else {
      document["results"] = results;
    }
    print(json_line(document));
  }

 private:
  bool on_token(size_t request, int64_t id) {
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

  const GenerateJob& job_;
  comm::Group pipeline_;
  bool prints_, streams_, is_first_ = true;
  std::vector<StreamingDetokenizer> texts_;
};

void warn_of_invalid_utf8(const GenerateJob& job) {
  text::InvalidUtf8 invalid;
  for (const Prompt& prompt : job.prompts)
    if (prompt.text) invalid.add(*job.tokenizer, *prompt.text, "the prompt");
  invalid.warn("generate");
}

void generate_rank(const GenerateJob& job, const comm::Mesh& mesh) {
  const comm::Group& world = world_of(mesh);
  if (mesh.rank() == 0) {
    job.model.warn("generate");
    warn_of_invalid_utf8(job);
    infer::warn_of_unsupported_fields(job.defaults, "generate");
    if (job.stages.pp > 1)
      base::log_info(
          stages_table("generate", job.stages, job.model.config().num_hidden_layers, job.options.model.tp));
  }
  model::DecoderWeights weights = weights_of_stage(job.model, job.stages, mesh);
  const PlannedMemories planned = job.planned(weights, mesh);
  GenerationTimes times;
  if (mesh.rank() == 0) {
    times = planned_times(inference_task(job.model, job.requests, job.batching()), job.requests.size(),
                          job.stages, world);
    base::log_info("generate: " +
                   (planned.empty() ? "peak memory is not planned for ranks over MPI or on several devices"
                                    : to_text(planned)) +
                   planned_text(times));
  }
  const checkpoint::LoadCost loaded = with_plan_in_error(
      "generate", planned, [&] { return job.model.map(weights, job.options.seed, world); });
  checkpoint::log_load("generate", job.model.directory(), loaded, world);
  RankGeneration generation(job, mesh);
  base::Profile profile;
  const infer::Generated generated = [&] {
    std::optional<base::Profile::Recording> recording;
    if (job.options.profile) recording.emplace(profile);
    return with_plan_in_error("generate", planned, [&] { return generation.run(weights); });
  }();
  generation.print_results(generated.completions,
                           {planned, times, loaded, generated.timings, peaks_of_ranks(mesh)});
  if (job.options.profile) report_profile("generate", *job.options.profile, profile, world);
}

/// Sets the number of ranks to the one that --auto chooses. Returns the flags with which they start.
std::vector<std::string> choose_(GenerateJob& job, const Flags& flags) {
  GenerateOptions& o = job.options;
  refuse_unplanned("generate", o.speculate > 0, "--speculate");
  refuse_unplanned("generate", o.model.activations == "int8", "--activations int8");
  const bool is_given = flags.is_given("tp");
  const auto pinned = is_given ? std::optional(o.model.tp) : tp_of_panels(o.model);
  const auto task = inference_task(job.model, job.requests, job.batching());
  o.model.tp = chosen_ranks(task.value(), pinned, o.automatic);
  return is_given ? std::vector<std::string>() : std::vector{"--tp"s, std::to_string(o.model.tp)};
}

}  // namespace

int generate_command(const Call& call) {
  GenerateOptions options;
  RankOptions ranks;
  Flags flags(
      "generate",
      "Generates text from prompts. A single sequence is streamed; several, and those of a "
      "--batch-file, are printed as one line of JSON each. Once shardwise bench machine --tp N --save has "
      "measured this host, runs of N ranks in all (--tp x --pp) begin with their planned time.");
  add_flags(flags, options);
  add_timeout_flag(flags, ranks);
  add_device_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("generate", ranks);
  const bool chooses = has_to_choose("generate", options.automatic, ranks.device);
  if (chooses) refuse_unplanned("generate", options.stages.pp > 1, "--pp above 1");
  if (chooses && !flags.is_given("tp")) options.model.tp = tp_of_panels(options.model).value_or(1);
  const launch::LaunchContext context = launch_context_for(ranks_of(options.stages, options.model.tp));
  GenerateJob job = make_job(options, context);
  ranks.device = inference_device("generate", ranks.device, job.model);
  std::vector<std::string> argv = call.argv;
  if (chooses) std::ranges::copy(choose_(job, flags), std::back_inserter(argv));
  const GenerateOptions& chosen = job.options;
  return run_on_mesh(
      {context, ranks_of(chosen.stages, chosen.model.tp), ranks, argv},
      [&](const comm::Mesh::Connect& connect) {
        return inference_mesh(chosen.stages.pp, chosen.model.tp, context.rank, context.world_size, connect);
      },
      [&](const comm::Mesh& mesh) { generate_rank(job, mesh); });
}

}  // namespace shardwise::cli
