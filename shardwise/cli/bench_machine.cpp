// `shardwise bench machine`: flags, table, the file that `shardwise plan --machine` reads, and the one that
// later runs read.
#include <c10/util/Exception.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <utility>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/isa.h"
#include "shardwise/base/log.h"
#include "shardwise/bench/machine.h"
#include "shardwise/cli/bench.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/saved_machine.h"
#include "shardwise/cli/table.h"
#include "shardwise/plan/machine_file.h"

namespace shardwise::cli {
namespace {

constexpr const char* kMachineCommand = "bench machine";

struct MachineOptions {
  int64_t tp = 2;
  double seconds = 0.5;
  bool save = false, quiet = false, json = false;
};

void add_flags(Flags& flags, MachineOptions& o) {
  add_tp_flag(flags, o.tp);
  flags.value("--seconds S", o.seconds, "time per operation and size, at least five repetitions [0.5]");
  flags.on_off(
      "--save", o.save,
      "keep the machine in the user's cache directory: train and generate with as many ranks then say "
      "how long they take before they start, and --auto chooses by it");
  flags.on_off("--quiet", o.quiet, "with --save: print no table");
  flags.on_off("--json", o.json, "print the file that shardwise plan --machine reads instead of a table");
}

/// Makes the directory of the file that --save writes, before anything is measured.
void check(const MachineOptions& o) {
  check_range(kMachineCommand, "--tp", o.tp, 1, kMaxBenchRanks);
  check_seconds(kMachineCommand, o.seconds);
  TORCH_CHECK_VALUE(!o.quiet || (o.save && !o.json), kMachineCommand,
                    ": --quiet needs --save, and no --json; got --quiet ", o.json ? "--json" : "alone",
                    " [SW0788]");
  if (o.save) prepare_measured_file(kMachineCommand, "--save", saved_machine_file({o.tp, 1}).path());
}

std::string source_of(int64_t ranks) {
  return fmt::format("shardwise bench machine, {} rank{}, {}, {}, {:%Y-%m-%d}", ranks, ranks == 1 ? "" : "s",
                     base::cpu_name(), base::name_of(base::best_isa()),
                     fmt::gmtime(std::chrono::system_clock::now()));
}

void add_rows(std::vector<Row>& rows, const char* operation, const char* dtype, const plan::Rate& rate,
              const char* unit) {
  for (const auto& [work, per_second] : rate.points()) {
    rows.push_back({operation, dtype, fmt::format("{:.3g} {}", work / 1e6, unit),
                    fmt::format("{:.1f} G{}/s", per_second / 1e9, unit),
                    fmt::format("{:.1f}", work / per_second * 1e6)});
    operation = dtype = "";
  }
}

void add_rows(std::vector<Row>& rows, const char* dtype, const plan::OperationRates& rates) {
  rows.push_back({"arithmetic", dtype, "", fmt::format("{:.1f} GFLOP/s", rates.flop_per_second.value / 1e9)});
  add_rows(rows, "product", dtype, rates.product, "FLOP");
  add_rows(rows, "input gradient", dtype, rates.input_gradient, "FLOP");
  add_rows(rows, "weight gradient", dtype, rates.weight_gradient, "FLOP");
  add_rows(rows, "attention", dtype, rates.attention, "FLOP");
  add_rows(rows, "attention backward", dtype, rates.attention_backward, "FLOP");
  add_rows(rows, "elementwise", dtype, rates.elementwise, "B");
}

/// What inference reads from a cache, and from memory.
void add_rows(std::vector<Row>& rows, const plan::InferenceRates& measured) {
  const auto for_each_place = [](const plan::ReadRates& rates, const auto& f) {
    f("from a cache", rates.from_cache);
    f("from memory", rates.from_memory);
  };
  const auto add_products = [&](const char* dtype, const plan::ReadRates& rates) {
    for_each_place(rates, [&](const char* place, const plan::Rate& rate) {
      std::string operation = fmt::format("product with a weight {}", place);
      for (const auto& [count, per_second] : rate.points())
        rows.push_back({std::exchange(operation, ""), dtype, fmt::format("{:.0f} rows", count),
                        fmt::format("{:.1f} GFLOP/s", per_second / 1e9)});
    });
  };
  add_products("bf16", measured.bf16);
  add_products("int8", measured.int8);
  add_products("int4", measured.int4);
  const auto add_attention = [&](int64_t queries, const plan::ReadRates& rates) {
    for_each_place(rates, [&](const char* place, const plan::Rate& rate) {
      const std::string operation = fmt::format("{} heads' attention to keys {}", queries, place);
      add_rows(rows, operation.c_str(), "bf16", rate, "elements");
    });
  };
  add_attention(1, measured.cached_attention.one_query);
  add_attention(static_cast<int64_t>(plan::CachedAttentionRates::kQueries), measured.cached_attention.shared);
  add_rows(rows, "reading again", "", measured.reading, "B");
  const auto add_time = [&](const char* what, double seconds) {
    rows.push_back({what, "bf16", "", "", fmt::format("{:.1f}", 1e6 * seconds)});
  };
  add_time("start of a product", measured.seconds_per_product);
  add_time("between a block's operations", measured.seconds_per_block);
  add_time("the same, for each text", measured.seconds_per_text);
}

std::string to_text(const plan::Machine& machine) {
  std::vector<Row> rows{{"operation", "dtype", "work, 1e6", "rate of a rank", "us"}};
  for (const auto& [operation, figure] : {std::pair{"reading", machine.memory_bytes_per_second},
                                          {"optimizer", machine.update_bytes_per_second}})
    rows.push_back({operation, "", "", fmt::format("{:.1f} GB/s", figure.value / 1e9)});
  add_rows(rows, "fp32", machine.rates_32_bit);
  add_rows(rows, "bf16", machine.rates_16_bit);
  if (machine.inference) add_rows(rows, *machine.inference);
  if (const auto& measured = machine.collectives) {
    add_rows(rows, "all_reduce", "", measured->all_reduce, "B");
    add_rows(rows, "all_gather in place", "", measured->all_gather, "B");
    add_rows(rows, "reduce_scatter", "", measured->reduce_scatter, "B");
  }
  return fmt::format("{}; medians on the slowest rank\n", machine.memory_bytes.source) + table(rows);
}

void save(const plan::Machine& machine, const HostRanks& ranks) {
  const base::MeasuredFile file = saved_machine_file(ranks);
  file.write(plan::machine_text(machine));
  base::log_info(fmt::format("{}: saved for {} to {}", kMachineCommand,
                             ranks.ranks == 1 ? "one rank" : fmt::format("{} ranks", ranks.ranks),
                             file.path()));
}

}  // namespace

int bench_machine_command(const Call& call) {
  MachineOptions o;
  RankOptions ranks;
  Flags flags(kMachineCommand,
              "Measures the rates of this machine's ranks, for shardwise plan --machine FILE.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate(kMachineCommand, ranks);
  check(o);
  return run_on_ranks({launch_context_for(o.tp), o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    TORCH_CHECK_VALUE(group.size() == 1 || group.has_symmetric_heap(), kMachineCommand,
                      ": the ranks must be of one node; got several [SW0769]");
    plan::Machine machine;
    {
      ProgressLine line;
      machine = bench::measure_machine(
          o.seconds, source_of(group.size()), group,
          [&](size_t done, size_t measurements, const std::string& name) {
            line.show(fmt::format("{}: {} of {}, {}", kMachineCommand, done + 1, measurements, name));
          });
    }
    if (group.rank() != 0) return;
    if (!o.quiet) print(o.json ? plan::machine_text(machine) : to_text(machine));
    if (o.save) save(machine, ranks_of(group));
  });
}

}  // namespace shardwise::cli
