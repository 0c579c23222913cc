// `shardwise bench decode` and `shardwise bench prefill`: flags, table and JSON document.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/isa.h"
#include "shardwise/bench/generation.h"
#include "shardwise/cli/bench.h"
#include "shardwise/cli/bench_shape.h"
#include "shardwise/cli/cache_dtype.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/profile_report.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/quantization_flags.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

using bench::GenerationCase, bench::GenerationMeasured, bench::Phase;

constexpr const char* kPreset = "llama-3.2-1b";
constexpr int64_t kMostTokens = 1 << 20, kMostTexts = 1 << 10;

struct GenerationOptions {
  int64_t tp = 2;
  BenchShape shape{kPreset};
  std::string formats = "bf16,int8,int4", texts = "1", contexts;
  std::optional<int64_t> group_size;
  std::string head = "int8", activations = "precise", cache_dtypes = "auto";
  double seconds = 5;
  std::optional<std::string> profile;
  bool json = false;
};

/// What differs between the two commands.
struct Command {
  Phase phase;
  std::string name, description, contexts_help;
  bool is_decode() const { return phase == Phase::decode; }
};

void add_flags(Flags& flags, const Command& command, GenerationOptions& o) {
  add_tp_flag(flags, o.tp);
  add_shape_flags(flags, o.shape);
  flags.value("--formats LIST", o.formats, fmt::format("of fp32, bf16, int8, int4 [{}]", o.formats));
  flags.value("--group-size N", o.group_size,
              "input features per scale: 32, 64 or 128 [128; int8: a scale per row]");
  flags.value("--head NAME", o.head, "of int8 and int4: format of lm_head and the embedding [int8]");
  flags.value("--activations NAME", o.activations, kActivationsHelp);
  flags.value("--contexts LIST", o.contexts, fmt::format("{} [{}]", command.contexts_help, o.contexts));
  if (command.is_decode()) flags.value("--texts LIST", o.texts, "texts that are decoded together [1]");
  flags.value("--kv-cache-dtypes LIST", o.cache_dtypes,
              "of cached keys and values: auto (that of activations), int8 [auto]");
  flags.value("--seconds S", o.seconds, "time per format, at least five repetitions [5]");
  flags.value("--profile FILE", o.profile,
              "record some more steps: tables by op and layer, and a Chrome trace; of one format and case");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
}

/// The model in one format.
struct Format {
  std::string name;
  config::Config config;
  at::ScalarType dtype;
};

Format format_of(const std::string& command, const std::string& name, const GenerationOptions& o,
                 const config::Config& shape) {
  check_choice(command, "--formats", name, {"fp32", "bf16", "int8", "int4"});
  Format format{name, shape, name == "fp32" ? at::kFloat : at::kBFloat16};
  if (!name.starts_with("int")) return format;
  format.config.quantization = quantization_on_load(command, name, o.group_size, o.head, shape);
  set_activations_(format.config.quantization, command, o.activations);
  return format;
}

std::vector<Format> formats_of(const std::string& command, const GenerationOptions& o) {
  const config::Config shape = o.shape.config(command, o.tp);
  std::vector<Format> formats;
  for (const std::string& name : parts_of(o.formats)) formats.push_back(format_of(command, name, o, shape));
  return formats;
}

std::vector<GenerationCase> cases_of(const std::string& command, const GenerationOptions& o) {
  std::vector<GenerationCase> cases;
  for (const int64_t context : integers_of(command, "--contexts", o.contexts, 1, kMostTokens)) {
    for (const int64_t texts : integers_of(command, "--texts", o.texts, 1, kMostTexts)) {
      for (const std::string& dtype : parts_of(o.cache_dtypes))
        cases.push_back({texts, context, cache_dtype_of(command, "--kv-cache-dtypes", dtype)});
    }
  }
  return cases;
}

struct FormatTimes {
  std::string format;
  bench::GenerationTimes times;
};

FormatTimes measure_format(const Command& command, const GenerationOptions& o, const Format& format,
                           const std::vector<GenerationCase>& cases, const comm::Group& group) {
  ProgressLine line;
  if (group.rank() == 0) line.show(fmt::format("{}: {}, random weights", command.name, format.name));
  model::DecoderWeights weights(format.config, group, format.dtype, model::WeightUse::inference);
  weights.initialize_(/*seed=*/1);
  const auto on_progress = [&](int64_t done, int64_t repetitions) {
    line.show(fmt::format("{}: {}, repetition {} of {}", command.name, format.name, done, repetitions));
  };
  FormatTimes measured{format.name,
                       bench::measure_generation(weights, command.phase, cases, o.seconds, on_progress)};
  if (o.profile) {
    const base::Profile profile = bench::profile_generation(weights, command.phase, cases.front());
    report_profile(command.name, *o.profile, profile, group);
  }
  return measured;
}

void check_profile(const Command& command, const GenerationOptions& o, size_t formats, size_t cases) {
  if (!o.profile) return;
  TORCH_CHECK_VALUE(formats == 1 && cases == 1, command.name, ": --profile records one format and case; got ",
                    formats, " formats and ", cases, " cases [SW0728]");
  check_profile_file(command.name, *o.profile);
}

/// Returns the tokens of one step.
int64_t tokens_of(const Command& command, const GenerationCase& of) {
  return command.is_decode() ? of.texts : of.context;
}

const char* cache_name(const GenerationCase& of) {
  return of.cache_dtype ? "int8" : "auto";
}

Row row_of(const Command& command, const FormatTimes& measured, const GenerationMeasured& of) {
  const double us = of.step.raw.median_us;
  return {measured.format,
          std::to_string(of.of.context),
          std::to_string(of.of.texts),
          cache_name(of.of),
          fmt::format("{:.2f}", us / 1e3),
          fmt::format("{:.1f}", static_cast<double>(tokens_of(command, of.of)) / us * 1e6),
          fmt::format("{:.2f}", measured.times.read.raw.median_us / 1e3),
          fmt::format("{:.0f}%", 100 * measured.times.read.raw.median_us / us)};
}

std::string to_text(const Command& command, const GenerationOptions& o,
                    const std::vector<FormatTimes>& measured) {
  std::vector<Row> rows{{"format", command.is_decode() ? "context" : "prompt", "texts", "cache", "ms",
                         "tokens/s", "ms to read weights", "of step"}};
  for (const FormatTimes& of : measured)
    for (const GenerationMeasured& one : of.times.cases) rows.push_back(row_of(command, of, one));
  return fmt::format("{}: {}, {} ranks, {}, {}; medians on the slowest rank\n", command.name, o.shape.name(),
                     o.tp, base::name_of(base::best_isa()), base::cpu_name()) +
         table(rows);
}

std::string to_json(const Command& command, const GenerationOptions& o,
                    const std::vector<FormatTimes>& measured) {
  nlohmann::ordered_json json{{"cpu", base::cpu_name()},
                              {"isa", base::name_of(base::best_isa())},
                              {"model", o.shape.name()},
                              {"tp", o.tp},
                              {"formats", nlohmann::ordered_json::array()}};
  for (const auto& [format, times] : measured) {
    nlohmann::ordered_json cases = nlohmann::ordered_json::array();
    for (const GenerationMeasured& of : times.cases) {
      cases.push_back({{"context", of.of.context},
                       {"texts", of.of.texts},
                       {"kv_cache_dtype", cache_name(of.of)},
                       {"tokens", tokens_of(command, of.of)},
                       {"step", to_json(of.step.raw)}});
    }
    json["formats"].push_back({{"format", format},
                               {"weight_bytes", times.weight_bytes},
                               {"repetitions", times.read.repetitions},
                               {"read", to_json(times.read.raw)},
                               {"cases", cases}});
  }
  return json_line(json);
}

int run(const Call& call, const Command& command, const std::string& contexts) {
  GenerationOptions o;
  o.contexts = contexts;
  RankOptions ranks;
  Flags flags(command.name, command.description);
  add_flags(flags, command, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate(command.name, ranks);
  check_range(command.name, "--tp", o.tp, 1, kMaxBenchRanks);
  check_seconds(command.name, o.seconds);
  const std::vector<GenerationCase> cases = cases_of(command.name, o);
  const std::vector<Format> formats = formats_of(command.name, o);
  check_profile(command, o, formats.size(), cases.size());
  return run_on_ranks({launch_context_for(o.tp), o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    std::vector<FormatTimes> measured;
    for (const Format& format : formats) measured.push_back(measure_format(command, o, format, cases, group));
    if (group.rank() == 0) print(o.json ? to_json(command, o, measured) : to_text(command, o, measured));
  });
}

}  // namespace

int bench_decode_command(const Call& call) {
  return run(call,
             {Phase::decode, "bench decode", "Times a token of each text, next to reading the weights once.",
              "tokens in each text's cache"},
             "128");
}

int bench_prefill_command(const Call& call) {
  return run(call,
             {Phase::prefill, "bench prefill", "Times prompts, next to reading the weights once.",
              "tokens of the prompts"},
             "512");
}

}  // namespace shardwise::cli
