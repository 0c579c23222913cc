// `shardwise bench comm`: its flags, its tables and its document.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/cli/bench_comm.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/live_line.h"
#include "shardwise/cli/loaded_model.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kMostRanks = 256, kElementBytes = 4, kLargestBytes = int64_t{1} << 30;
constexpr double kLongest = 3600;

struct CommOptions {
  int64_t tp = 2;
  std::string dtype = "fp32", sizes = "4KB,64KB,1MB,4MB,64MB", mode = "both";
  double seconds = 1;
  bool json = false;
};

void add_flags(Flags& flags, CommOptions& o) {
  flags.value("--tp,--tensor-parallel-size,--tp-size N", o.tp, "ranks, started by this program [2]");
  flags.value("--dtype WORD", o.dtype, "fp32 or bf16 [fp32]");
  flags.value("--sizes LIST", o.sizes, fmt::format("of the tensors, in powers of 1024 [{}]", o.sizes));
  flags.value(
      "--mode WORD", o.mode,
      "warm: the same tensor again and again; rewritten: written anew before every call; both [both]");
  flags.value("--seconds S", o.seconds, "of every size in every mode; five rounds at least [1]");
  flags.on_off("--json", o.json, "one JSON object instead of the tables");
}

struct Unit {
  std::string_view name;
  int64_t bytes;
};
constexpr Unit kUnits[] = {{"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}, {"B", 1}, {"", 1}};

/// 0 for what is no size.
int64_t size_of(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  if (error != std::errc() || number < 0 || number > kLargestBytes) return 0;
  const std::string_view name(end, text.end());
  const Unit* unit = std::ranges::find(kUnits, name, &Unit::name);
  return unit == std::end(kUnits) ? 0 : number * unit->bytes;
}

int64_t read_size(const std::string& text) {
  const int64_t bytes = size_of(text);
  TORCH_CHECK_VALUE(bytes > 0 && bytes <= kLargestBytes && bytes % kElementBytes == 0,
                    "bench comm: --sizes lists multiples of 4 bytes up to 1GB, as in 4KB,64KB,1MB; got '",
                    text, "'");
  return bytes;
}

std::vector<int64_t> read_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    sizes.push_back(read_size(text.substr(begin, end - begin)));
  }
  return sizes;
}

/// Errors: c10::ValueError naming the flag and its rule.
CommBench bench_of(const CommOptions& o) {
  TORCH_CHECK_VALUE(o.tp >= 2 && o.tp <= kMostRanks,
                    "bench comm: --tp must be from 2 to 256, for a rank alone sends nothing; got ", o.tp);
  TORCH_CHECK_VALUE(o.seconds > 0 && o.seconds <= kLongest,
                    "bench comm: --seconds must be above 0 and at most 3600; got ", o.seconds);
  check_word("bench comm", "--dtype", o.dtype, {"fp32", "bf16"});
  check_word("bench comm", "--mode", o.mode, {"warm", "rewritten", "both"});
  std::vector<BufferUse> uses;
  for (const BufferUse use : {BufferUse::warm, BufferUse::rewritten}) {
    if (o.mode == "both" || o.mode == name_of(use)) uses.push_back(use);
  }
  return {o.dtype == "fp32" ? at::kFloat : at::kBFloat16, read_sizes(o.sizes), uses, o.seconds};
}

Row row_of(const CommPoint& point) {
  const Spread& arena = point.measured[0].net;
  const double foreign_us = point.measured[1].net.median_us, memcpy_us = point.measured[2].net.median_us;
  return {size_text(point.bytes),
          fmt::format("{:.2f}", arena.median_us),
          fmt::format("{:.2f}-{:.2f}", arena.lower_quartile_us, arena.upper_quartile_us),
          fmt::format("{:.2f}", static_cast<double>(point.bytes) / arena.median_us / 1e3),
          fmt::format("{:.2f}", arena.median_us / memcpy_us),
          fmt::format("{:.2f}", foreign_us),
          fmt::format("{:.2f}", foreign_us / memcpy_us),
          fmt::format("{:.2f}", memcpy_us)};
}

std::string table_of(const std::vector<CommPoint>& points, BufferUse use) {
  std::vector<Row> rows{
      {"size", "all_reduce us", "quartiles", "GB/s", "of memcpy", "foreign us", "of memcpy", "memcpy us"}};
  for (const CommPoint& point : points) {
    if (point.use == use) rows.push_back(row_of(point));
  }
  return table(rows);
}

std::string to_text(const CommOptions& o, const CommBench& bench, const std::vector<CommPoint>& points) {
  std::string text = fmt::format("{} ranks, {}, {}; a call's time on the slowest rank, median of rounds\n",
                                 o.tp, o.dtype, base::cpu_name());
  for (const BufferUse use : bench.uses) {
    text += use == BufferUse::warm ? "warm: the same tensor again and again\n"
                                   : "rewritten: written anew before every call, less the time of writing\n";
    text += table_of(points, use);
  }
  return text;
}

std::string to_json(const CommOptions& o, const std::vector<CommPoint>& points) {
  const char* how = "Group::all_reduce_ from C++, a process and a thread for each rank";
  return json_line(to_json(CommDocument{"shardwise", SHARDWISE_VERSION, how, o.tp, o.dtype, points}));
}

}  // namespace

std::string size_text(int64_t bytes) {
  const Unit* unit = std::ranges::find_if(kUnits, [&](const Unit& u) { return bytes % u.bytes == 0; });
  return fmt::format("{}{}", bytes / unit->bytes, unit->name);
}

int bench_comm_command(const Call& call) {
  CommOptions o;
  RankOptions ranks;
  Flags flags("bench comm", "Times all_reduce on ranks of this machine, beside copying as many bytes once.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("bench comm", ranks);
  const CommBench bench = bench_of(o);
  return run_on_ranks({place_for(o.tp), o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    std::vector<CommPoint> points;
    {
      LiveLine line;
      points = measure_comm(bench, group, [&](const std::string& text) { line.show(text); });
    }
    if (group.rank() == 0) print(o.json ? to_json(o, points) : to_text(o, bench, points));
  });
}

}  // namespace shardwise::cli
