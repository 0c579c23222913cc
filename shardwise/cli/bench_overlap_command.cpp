// `shardwise bench overlap`: its flags, its table and its document.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/cli/bench_document.h"
#include "shardwise/cli/bench_overlap.h"
#include "shardwise/cli/bench_rounds.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/live_line.h"
#include "shardwise/cli/loaded_model.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kMostRows = 1 << 20, kMostFeatures = 1 << 17;

struct OverlapOptions {
  int64_t tp = 2, rows = 2048, hidden = 4096, ffn = 11008;
  std::string dtype = "bf16";
  double seconds = 10;
  bool json = false;
};

void add_flags(Flags& flags, OverlapOptions& o) {
  flags.value("--tp,--tensor-parallel-size,--tp-size N", o.tp, "ranks, started by this program [2]");
  flags.value("--dtype WORD", o.dtype, "fp32 or bf16 [bf16]");
  flags.value("--rows N", o.rows, fmt::format("tokens of all sequences together [{}]", o.rows));
  flags.value("--hidden N", o.hidden, fmt::format("features of the stream [{}]", o.hidden));
  flags.value("--ffn N", o.ffn, fmt::format("features between the two layers, of all ranks [{}]", o.ffn));
  flags.value("--seconds S", o.seconds, "of every layer; five rounds at least [10]");
  flags.on_off("--json", o.json, "one JSON object instead of the table");
}

void check_range(const char* flag, int64_t value, int64_t least, int64_t most) {
  TORCH_CHECK_VALUE(value >= least && value <= most, "bench overlap: ", flag, " must be from ", least, " to ",
                    most, "; got ", value);
}

/// Errors: c10::ValueError naming the flag and its rule.
OverlapBench bench_of(const OverlapOptions& o) {
  check_range("--tp", o.tp, 2, kMostRanks);
  check_range("--rows", o.rows, 1, kMostRows);
  check_range("--hidden", o.hidden, 1, kMostFeatures);
  check_range("--ffn", o.ffn, 1, kMostFeatures);
  TORCH_CHECK_VALUE(o.seconds > 0 && o.seconds <= kLongestSeconds,
                    "bench overlap: --seconds must be above 0 and at most 3600; got ", o.seconds);
  check_word("bench overlap", "--dtype", o.dtype, {"fp32", "bf16"});
  return {o.dtype == "fp32" ? at::kFloat : at::kBFloat16, o.rows, o.hidden, o.ffn, o.seconds};
}

std::string to_text(const OverlapOptions& o, const std::vector<OverlapMeasured>& measured) {
  std::vector<Row> rows{
      {"layer", "overlap on ms", "quartiles", "off ms", "bare products ms", "on/bare", "off/bare"}};
  const auto ms = [](double us) { return fmt::format("{:.3f}", us / 1e3); };
  for (const auto& [name, on, off, bare] : measured) {
    rows.push_back({name, ms(on.raw.median_us),
                    ms(on.raw.lower_quartile_us) + "-" + ms(on.raw.upper_quartile_us), ms(off.raw.median_us),
                    ms(bare.raw.median_us), fmt::format("{:.4f}", on.raw.median_us / bare.raw.median_us),
                    fmt::format("{:.4f}", off.raw.median_us / bare.raw.median_us)});
  }
  return fmt::format("{} ranks, {}, {} rows, {} x {}, {}; the slowest rank's time, median of rounds\n", o.tp,
                     o.dtype, o.rows, o.hidden, o.ffn, base::cpu_name()) +
         table(rows);
}

std::string to_json(const OverlapOptions& o, const std::vector<OverlapMeasured>& measured) {
  nlohmann::ordered_json json{{"cpu", base::cpu_name()},
                              {"tp", o.tp},
                              {"dtype", o.dtype},
                              {"rows", o.rows},
                              {"hidden", o.hidden},
                              {"ffn", o.ffn},
                              {"layers", nlohmann::ordered_json::array()}};
  for (const auto& [name, on, off, bare] : measured) {
    json["layers"].push_back({{"name", name},
                              {"rounds", on.rounds},
                              {"on", to_json(on.raw)},
                              {"off", to_json(off.raw)},
                              {"bare", to_json(bare.raw)}});
  }
  return json_line(json);
}

}  // namespace

int bench_overlap_command(const Call& call) {
  OverlapOptions o;
  RankOptions ranks;
  Flags flags("bench overlap",
              "Times the linear layers of TP+SP, collectives included, beside their bare products.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("bench overlap", ranks);
  const OverlapBench bench = bench_of(o);
  return run_on_ranks({place_for(o.tp), o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    std::vector<OverlapMeasured> measured;
    {
      LiveLine line;
      measured = measure_overlap(bench, group, [&](const std::string& text) { line.show(text); });
    }
    if (group.rank() == 0) print(o.json ? to_json(o, measured) : to_text(o, measured));
  });
}

}  // namespace shardwise::cli
