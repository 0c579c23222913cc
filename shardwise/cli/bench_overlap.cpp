// `shardwise bench overlap`: flags, table and JSON document.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/error.h"
#include "shardwise/bench/overlap.h"
#include "shardwise/cli/bench.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"
#include "shardwise/parallel/step.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kMaxRows = 1 << 20, kMaxFeatures = 1 << 17;

struct OverlapOptions {
  int64_t tp = 2, rows = 2048, hidden = 4096, ffn = 11008;
  std::string dtype = "bf16";
  double seconds = 10;
  bool json = false;
};

void add_flags(Flags& flags, OverlapOptions& o) {
  add_tp_flag(flags, o.tp);
  flags.value("--dtype NAME", o.dtype, "fp32 or bf16 [bf16]");
  flags.value("--rows N", o.rows, fmt::format("tokens in total, s * b [{}]", o.rows));
  flags.value("--hidden N", o.hidden, fmt::format("hidden size [{}]", o.hidden));
  flags.value("--ffn N", o.ffn, fmt::format("intermediate size, over all ranks [{}]", o.ffn));
  flags.value("--seconds S", o.seconds, "time per layer, at least five repetitions [10]");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
}

/// Errors: c10::ValueError naming the flag and its rule.
bench::OverlapBench bench_of(const OverlapOptions& o) {
  check_range("bench overlap", "--tp", o.tp, 2, kMaxBenchRanks);
  check_range("bench overlap", "--rows", o.rows, 1, kMaxRows);
  check_range("bench overlap", "--hidden", o.hidden, 1, kMaxFeatures);
  check_range("bench overlap", "--ffn", o.ffn, 1, kMaxFeatures);
  check_seconds("bench overlap", o.seconds);
  check_choice("bench overlap", "--dtype", o.dtype, {"fp32", "bf16"});
  return {o.dtype == "fp32" ? at::kFloat : at::kBFloat16, o.rows, o.hidden, o.ffn, o.seconds};
}

/// Where nothing can overlap, on and off are one program, and their times say nothing.
void check_overlap(const comm::Group& group) {
  if (parallel::can_overlap(group)) return;
  throw base::CollectiveError(fmt::format(
      "bench overlap: needs ranks that share memory, or a backend that progresses asynchronously; got {} "
      "ranks over MPI, whose collectives run inside their calls; run it on one node [SW0523]",
      group.size()));
}

std::string to_text(const OverlapOptions& o, const std::vector<bench::OverlapMeasured>& measured) {
  std::vector<Row> rows{
      {"layer", "overlap on ms", "quartiles", "off ms", "GEMM alone ms", "on/GEMM", "off/GEMM"}};
  const auto ms = [](double us) { return fmt::format("{:.3f}", us / 1e3); };
  for (const auto& [name, on, off, gemm] : measured) {
    rows.push_back({name, ms(on.raw.median_us),
                    ms(on.raw.lower_quartile_us) + "-" + ms(on.raw.upper_quartile_us), ms(off.raw.median_us),
                    ms(gemm.raw.median_us), fmt::format("{:.4f}", on.raw.median_us / gemm.raw.median_us),
                    fmt::format("{:.4f}", off.raw.median_us / gemm.raw.median_us)});
  }
  return fmt::format(
             "{} ranks, {}, {} rows, {} x {}, {}; time of the slowest rank, median of the repetitions\n",
             o.tp, o.dtype, o.rows, o.hidden, o.ffn, base::cpu_name()) +
         table(rows);
}

std::string to_json(const OverlapOptions& o, const std::vector<bench::OverlapMeasured>& measured) {
  nlohmann::ordered_json json{{"cpu", base::cpu_name()},
                              {"tp", o.tp},
                              {"dtype", o.dtype},
                              {"rows", o.rows},
                              {"hidden", o.hidden},
                              {"ffn", o.ffn},
                              {"layers", nlohmann::ordered_json::array()}};
  for (const auto& [name, on, off, gemm] : measured) {
    json["layers"].push_back({{"name", name},
                              {"repetitions", on.repetitions},
                              {"overlap_on", to_json(on.raw)},
                              {"overlap_off", to_json(off.raw)},
                              {"gemm", to_json(gemm.raw)}});
  }
  return json_line(json);
}

}  // namespace

int bench_overlap_command(const Call& call) {
  OverlapOptions o;
  RankOptions ranks;
  Flags flags("bench overlap",
              "Times the linear layers of TP+SP with their collectives, next to the GEMMs alone.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("bench overlap", ranks);
  const bench::OverlapBench measurement = bench_of(o);
  return run_on_ranks({launch_context_for(o.tp), o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    check_overlap(group);
    std::vector<bench::OverlapMeasured> measured;
    {
      ProgressLine line;
      measured = bench::measure_overlap(
          measurement, group, [&](const std::string& name, int64_t done, int64_t repetitions) {
            line.show(fmt::format("bench overlap: {}, repetition {} of {}", name, done, repetitions));
          });
    }
    if (group.rank() == 0) print(o.json ? to_json(o, measured) : to_text(o, measured));
  });
}

}  // namespace shardwise::cli
