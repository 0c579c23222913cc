// `shardwise bench step`: flags, table and JSON document.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/bench/probes.h"
#include "shardwise/bench/synchronizer.h"
#include "shardwise/bench/training_step.h"
#include "shardwise/cli/bench.h"
#include "shardwise/cli/bench_shape.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/profile_report.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"
#include "shardwise/train/options.h"

namespace shardwise::cli {
namespace {

constexpr const char* kStepCommand = "bench step";
constexpr const char* kStepPreset = "small";
constexpr int64_t kMostSequences = 1 << 20, kProfiledSteps = 3;

struct StepOptions {
  int64_t tp = 2, seq_len = 256, batch_size = 4;
  BenchShape shape{kStepPreset};
  std::optional<std::string> profile;
  std::string dtypes = "fp32,bf16", recompute = "none";
  bool sequence_parallel = true;
  double seconds = 10;
  bool json = false;
};

void add_flags(Flags& flags, StepOptions& o) {
  add_tp_flag(flags, o.tp);
  add_shape_flags(flags, o.shape);
  flags.value("--dtypes LIST", o.dtypes, fmt::format("of fp32 and bf16 [{}]", o.dtypes));
  flags.value("--seq-len N", o.seq_len, "tokens per sequence [256]");
  flags.value("--batch-size N", o.batch_size, "sequences [4]");
  flags.on_off("--sequence-parallel,!--no-sequence-parallel", o.sequence_parallel,
               "shard activations between the layers along the sequence [on]");
  flags.value("--recompute MODE", o.recompute, "what backward recomputes: none, selective or full [none]");
  flags.value("--seconds S", o.seconds, "time per dtype, at least five repetitions [10]");
  flags.value("--profile FILE", o.profile,
              fmt::format("record {} more steps: tables by op and layer, and a Chrome trace; with one dtype",
                          kProfiledSteps));
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
}

/// What the options name.
struct StepCase {
  config::Config config;
  std::vector<std::string> dtypes;
  bench::StepShape shape;
};

StepCase case_of(const StepOptions& o) {
  StepCase result{o.shape.config(kStepCommand, o.tp),
                  parts_of(o.dtypes),
                  {o.seq_len, o.batch_size, o.sequence_parallel, train::recompute_of(o.recompute)}};
  check_range(kStepCommand, "--seq-len", o.seq_len, 1, result.config.max_position_embeddings);
  check_range(kStepCommand, "--batch-size", o.batch_size, 1, kMostSequences);
  for (const std::string& dtype : result.dtypes)
    check_choice(kStepCommand, "--dtypes", dtype, {"fp32", "bf16"});
  TORCH_CHECK_VALUE(!o.profile || result.dtypes.size() == 1, kStepCommand,
                    ": --profile records one dtype; got --dtypes ", o.dtypes, " [SW0727]");
  if (o.profile) check_profile_file(kStepCommand, *o.profile);
  return result;
}

struct StepMeasured {
  std::string dtype, probe;
  double loss;
  int64_t operations;        // of rank 0's products with weights, in one step
  int64_t probe_operations;  // of rank 0's probe, in one run
  bench::Measured step, arithmetic;

  /// Multiplications and additions per second of a rank.
  double rate() const { return static_cast<double>(operations) / step.raw.median_us * 1e6; }
  double peak_rate() const { return static_cast<double>(probe_operations) / arithmetic.raw.median_us * 1e6; }
};

StepMeasured measure(const StepCase& of, const std::string& dtype, const StepOptions& o,
                     const comm::Group& group) {
  ProgressLine line;
  if (group.rank() == 0) line.show(fmt::format("{}: {}, random weights", kStepCommand, dtype));
  const at::ScalarType type = dtype == "fp32" ? at::kFloat : at::kBFloat16;
  bench::TrainingStep step(of.config, type, of.shape, group);
  const bench::ArithmeticProbe probe(type);
  bench::Synchronizer synchronizer = bench::synchronizer_of(group);
  if (group.rank() == 0) {
    synchronizer.after_repetition = [&](int64_t done, int64_t repetitions) {
      line.show(fmt::format("{}: {}, repetition {} of {}", kStepCommand, dtype, done, repetitions));
    };
  }
  const std::vector<bench::Measured> times = bench::measure(
      {{"step", [&] { step.run(); }, /*rewrite=*/{}}, {"arithmetic", [&] { probe.run(); }, /*rewrite=*/{}}},
      bench::CacheState::warm, o.seconds, synchronizer);
  StepMeasured result{dtype,    probe.name(), step.loss(), step.product_operations(), probe.operations(),
                      times[0], times[1]};
  if (!o.profile) return result;
  base::Profile profile;
  {
    const base::Profile::Recording recording(profile);
    for (int64_t i = 0; i < kProfiledSteps; ++i) step.run();
  }
  report_profile(kStepCommand, *o.profile, profile, group);
  return result;
}

double tokens_per_s(const StepOptions& o, const StepMeasured& of) {
  return static_cast<double>(o.seq_len * o.batch_size) / of.step.raw.median_us * 1e6;
}

std::string to_text(const StepOptions& o, const std::vector<StepMeasured>& measured) {
  std::vector<Row> rows{
      {"dtype", "ms", "quartiles", "tokens/s", "GFLOP/s per rank", "of arithmetic", "instruction"}};
  for (const StepMeasured& of : measured) {
    const bench::Spread& raw = of.step.raw;
    rows.push_back({of.dtype, fmt::format("{:.1f}", raw.median_us / 1e3),
                    fmt::format("{:.1f}-{:.1f}", raw.lower_quartile_us / 1e3, raw.upper_quartile_us / 1e3),
                    fmt::format("{:.0f}", tokens_per_s(o, of)), fmt::format("{:.0f}", of.rate() / 1e9),
                    fmt::format("{:.0f}%", 100 * of.rate() / of.peak_rate()), of.probe});
  }
  return fmt::format("{}: {}, {} ranks{}, {} x {} tokens, {}; medians on the slowest rank\n", kStepCommand,
                     o.shape.name(), o.tp, o.sequence_parallel ? " with sequence parallelism" : "",
                     o.batch_size, o.seq_len, base::cpu_name()) +
         table(rows);
}

std::string to_json(const StepOptions& o, const std::vector<StepMeasured>& measured) {
  nlohmann::ordered_json json{{"cpu", base::cpu_name()},
                              {"model", o.shape.name()},
                              {"tp", o.tp},
                              {"sequence_parallel", o.sequence_parallel},
                              {"recompute", o.recompute},
                              {"seq_len", o.seq_len},
                              {"batch_size", o.batch_size},
                              {"dtypes", nlohmann::ordered_json::array()}};
  for (const StepMeasured& of : measured) {
    json["dtypes"].push_back({{"dtype", of.dtype},
                              {"loss", of.loss},
                              {"repetitions", of.step.repetitions},
                              {"step", bench::to_json(of.step.raw)},
                              {"product_operations", of.operations},
                              {"arithmetic",
                               {{"instruction", of.probe},
                                {"operations", of.probe_operations},
                                {"time", bench::to_json(of.arithmetic.raw)}}}});
  }
  return json_line(json);
}

}  // namespace

int bench_step_command(const Call& call) {
  StepOptions o;
  RankOptions ranks;
  Flags flags(kStepCommand,
              "Times a training step: forward, backward, clipping and AdamW, next to arithmetic.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate(kStepCommand, ranks);
  check_range(kStepCommand, "--tp", o.tp, 1, kMaxBenchRanks);
  check_seconds(kStepCommand, o.seconds);
  const StepCase of = case_of(o);
  return run_on_ranks({launch_context_for(o.tp), o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    std::vector<StepMeasured> measured;
    for (const std::string& dtype : of.dtypes) measured.push_back(measure(of, dtype, o, group));
    if (group.rank() == 0) print(o.json ? to_json(o, measured) : to_text(o, measured));
  });
}

}  // namespace shardwise::cli
