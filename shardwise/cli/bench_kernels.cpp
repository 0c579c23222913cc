// `shardwise bench kernels`: flags, table and JSON document.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/isa.h"
#include "shardwise/bench/kernel_cases.h"
#include "shardwise/bench/kernels.h"
#include "shardwise/cli/bench.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

using bench::KernelBench, bench::KernelMeasured;

constexpr const char* kKernelsCommand = "bench kernels";
constexpr int64_t kMaxKernelRows = 1 << 20, kLeastWidth = 128, kMaxWidth = 1 << 17;

struct KernelsOptions {
  int64_t tp = 2, rows = 4096, width = 4096;
  std::optional<std::string> kernels;
  std::string dtypes = "fp32,bf16";
  double seconds = 2;
  bool json = false;
};

void add_flags(Flags& flags, KernelsOptions& o) {
  add_tp_flag(flags, o.tp);
  flags.value("--kernels LIST", o.kernels,
              fmt::format("of {} [all]", fmt::to_string(fmt::join(bench::kernel_families(), ", "))));
  flags.value("--dtypes LIST", o.dtypes, fmt::format("of fp32, bf16 [{}]", o.dtypes));
  flags.value("--rows N", o.rows, fmt::format("tokens on each rank [{}]", o.rows));
  flags.value("--width N", o.width, fmt::format("features of a token, a multiple of 128 [{}]", o.width));
  flags.value("--seconds S", o.seconds, "time per kernel and dtype, at least five repetitions [2]");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
}

/// Errors: c10::ValueError naming the flag and its rule.
KernelBench bench_of(const KernelsOptions& o) {
  check_range(kKernelsCommand, "--tp", o.tp, 1, kMaxBenchRanks);
  check_range(kKernelsCommand, "--rows", o.rows, 1, kMaxKernelRows);
  check_range(kKernelsCommand, "--width", o.width, kLeastWidth, kMaxWidth);
  TORCH_CHECK_VALUE(o.width % kLeastWidth == 0, kKernelsCommand, ": --width must be a multiple of 128; got ",
                    o.width, " [SW0719]");
  check_seconds(kKernelsCommand, o.seconds);
  KernelBench bench{.families = bench::kernel_families(),
                    .dtypes = {},
                    .rows = o.rows,
                    .width = o.width,
                    .seconds = o.seconds};
  if (o.kernels) {
    const std::vector<std::string> known = bench.families;
    bench.families = parts_of(*o.kernels);
    for (const std::string& family : bench.families)
      check_choice(kKernelsCommand, "--kernels", family, known);
  }
  for (const std::string& name : parts_of(o.dtypes)) {
    check_choice(kKernelsCommand, "--dtypes", name, {"fp32", "bf16"});
    bench.dtypes.push_back(name == "fp32" ? at::kFloat : at::kBFloat16);
  }
  return bench;
}

const char* name_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? "fp32" : "bf16";
}

std::string to_text(const KernelsOptions& o, const std::vector<KernelMeasured>& measured) {
  std::vector<Row> rows{{"kernel", "dtype", "ms", "PyTorch ms", "PyTorch/ours", "GB/s", "of copy"}};
  for (const KernelMeasured& of : measured) {
    const double us = of.ours.raw.median_us, torch_us = of.torch.raw.median_us;
    const double rate = static_cast<double>(o.tp * of.bytes) / us / 1e3,
                 copy_rate = static_cast<double>(o.tp * of.copy_bytes) / of.copy.raw.median_us / 1e3;
    rows.push_back({of.name, name_of(of.dtype), fmt::format("{:.3f}", us / 1e3),
                    fmt::format("{:.3f}", torch_us / 1e3), fmt::format("{:.2f}x", torch_us / us),
                    fmt::format("{:.1f}", rate), fmt::format("{:.0f}%", 100 * rate / copy_rate)});
  }
  return fmt::format("{} ranks, {} x {}, {}, {}; medians on the slowest rank, rates of all ranks together\n",
                     o.tp, o.rows, o.width, base::name_of(base::best_isa()), base::cpu_name()) +
         table(rows);
}

std::string to_json(const KernelsOptions& o, const std::vector<KernelMeasured>& measured) {
  nlohmann::ordered_json json{
      {"cpu", base::cpu_name()}, {"isa", base::name_of(base::best_isa())},    {"tp", o.tp}, {"rows", o.rows},
      {"width", o.width},        {"kernels", nlohmann::ordered_json::array()}};
  for (const KernelMeasured& of : measured) {
    json["kernels"].push_back({{"kernel", of.name},
                               {"dtype", name_of(of.dtype)},
                               {"bytes", of.bytes},
                               {"copy_bytes", of.copy_bytes},
                               {"repetitions", of.ours.repetitions},
                               {"ours", to_json(of.ours.raw)},
                               {"torch", to_json(of.torch.raw)},
                               {"copy", to_json(of.copy.raw)}});
  }
  return json_line(json);
}

}  // namespace

int bench_kernels_command(const Call& call) {
  KernelsOptions o;
  RankOptions ranks;
  Flags flags(kKernelsCommand,
              "Times kernels forward and backward, next to PyTorch's operators and to copying a tensor.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate(kKernelsCommand, ranks);
  const KernelBench measurement = bench_of(o);
  return run_on_ranks({launch_context_for(o.tp), o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    std::vector<KernelMeasured> measured;
    {
      ProgressLine line;
      const size_t kernels = 2 * measurement.families.size() * measurement.dtypes.size();
      measured = bench::measure_kernels(
          measurement, group, [&](size_t done, int64_t repetition, int64_t repetitions) {
            line.show(fmt::format("{}: kernel {} of {}, repetition {} of {}", kKernelsCommand, done + 1,
                                  kernels, repetition, repetitions));
          });
    }
    if (group.rank() == 0) print(o.json ? to_json(o, measured) : to_text(o, measured));
  });
}

}  // namespace shardwise::cli
