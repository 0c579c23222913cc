// `shardwise bench comm`: flags, tables and JSON document.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/error.h"
#include "shardwise/base/json.h"
#include "shardwise/bench/all_reduce.h"
#include "shardwise/cli/bench.h"
#include "shardwise/cli/flags.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/progress_line.h"
#include "shardwise/cli/ranks.h"
#include "shardwise/cli/table.h"
#include "shardwise/version.h"

namespace shardwise::cli {

using bench::AllReduceBench;
using bench::CacheState;
using bench::Point;
using bench::Spread;
using comm::OneShotLimit;

namespace {

constexpr int64_t kElementBytes = 4, kLargestBytes = int64_t{1} << 30;

struct CommOptions {
  int64_t tp = 2;
  std::optional<std::string> sizes;
  std::string dtype = "fp32", mode = "both";
  double seconds = 1;
  bool tune = false, json = false;
};

constexpr const char *kSizes = "4KB,64KB,1MB,4MB,64MB", *kTunedSizes = "64,128,256,512,1KB,2KB,4032";

void add_flags(Flags& flags, CommOptions& o) {
  add_tp_flag(flags, o.tp);
  flags.value("--dtype NAME", o.dtype, "fp32 or bf16 [fp32]");
  flags.value("--sizes LIST", o.sizes,
              fmt::format("tensor sizes in bytes, KB = 1024 [{}; with --tune {}]", kSizes, kTunedSizes));
  flags.value(
      "--mode NAME", o.mode,
      "warm: reuse the tensor as the last call left it; rewritten: write it before every call; both [both]");
  flags.value("--seconds S", o.seconds, "time per size and mode, at least five repetitions [1]");
  flags.on_off("--tune", o.tune,
               "find the largest size at which one-shot beats two-shot, and save it for groups of this size");
  flags.on_off("--json", o.json, "print one JSON object instead of tables");
}

struct Unit {
  std::string_view name;
  int64_t bytes;
};
constexpr Unit kUnits[] = {{"GB", 1 << 30}, {"MB", 1 << 20}, {"KB", 1 << 10}, {"B", 1}, {"", 1}};

/// Returns the bytes of a size such as "4KB"; 0 if `text` is not a size.
int64_t size_of(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  if (error != std::errc() || number < 0 || number > kLargestBytes) return 0;
  const std::string_view name(end, text.end());
  const Unit* unit = std::ranges::find(kUnits, name, &Unit::name);
  return unit == std::end(kUnits) ? 0 : number * unit->bytes;
}

/// Formats 4096 as "4KB".
std::string size_text(int64_t bytes) {
  const Unit* unit = std::ranges::find_if(kUnits, [&](const Unit& u) { return bytes % u.bytes == 0; });
  return fmt::format("{}{}", bytes / unit->bytes, unit->name);
}

int64_t read_size(const std::string& text) {
  const int64_t bytes = size_of(text);
  TORCH_CHECK_VALUE(bytes > 0 && bytes <= kLargestBytes && bytes % kElementBytes == 0,
                    "bench comm: --sizes must list multiples of 4 bytes up to 1GB, as in 4KB,64KB,1MB; got '",
                    base::shortened(text), "' [SW0086]");
  return bytes;
}

std::vector<int64_t> read_sizes(const CommOptions& o) {
  std::vector<int64_t> sizes;
  for (const std::string& text : parts_of(o.sizes.value_or(o.tune ? kTunedSizes : kSizes))) {
    sizes.push_back(read_size(text));
    TORCH_CHECK_VALUE(!o.tune || sizes.back() <= comm::shm::kMaxOneShotBytes,
                      "bench comm: --tune needs --sizes up to ", comm::shm::kMaxOneShotBytes,
                      " bytes, the most that one-shot accepts; got ", sizes.back(), " [SW0087]");
  }
  return sizes;
}

/// Errors: c10::ValueError naming the flag and its rule.
AllReduceBench bench_of(const CommOptions& o) {
  TORCH_CHECK_VALUE(o.tp >= 2 && o.tp <= kMaxBenchRanks, "bench comm: --tp must be from 2 to ",
                    kMaxBenchRanks, ", because a single rank sends nothing; got ", o.tp, " [SW0085]");
  check_seconds("bench comm", o.seconds);
  check_choice("bench comm", "--dtype", o.dtype, {"fp32", "bf16"});
  check_choice("bench comm", "--mode", o.mode, {"warm", "rewritten", "both"});
  std::vector<CacheState> states;
  for (const CacheState state : {CacheState::warm, CacheState::rewritten}) {
    if (o.mode == "both" || o.mode == name_of(state)) states.push_back(state);
  }
  return {o.dtype == "fp32" ? at::kFloat : at::kBFloat16, read_sizes(o), states, o.seconds};
}

std::string quartiles(const Spread& us) {
  return fmt::format("{:.2f}-{:.2f}", us.lower_quartile_us, us.upper_quartile_us);
}

Row row_of(const Point& point) {
  const Spread& registered = point.measured[0].net;
  const double unregistered_us = point.measured[1].net.median_us, memcpy_us = point.measured[2].net.median_us;
  return {size_text(point.bytes),
          fmt::format("{:.2f}", registered.median_us),
          quartiles(registered),
          fmt::format("{:.2f}", static_cast<double>(point.bytes) / registered.median_us / 1e3),
          fmt::format("{:.2f}", registered.median_us / memcpy_us),
          fmt::format("{:.2f}", unregistered_us),
          fmt::format("{:.2f}", unregistered_us / memcpy_us),
          fmt::format("{:.2f}", memcpy_us)};
}

std::string table_of(const std::vector<Point>& points, CacheState state) {
  std::vector<Row> rows{
      {"size", "all_reduce us", "quartiles", "GB/s", "/ memcpy", "unregistered us", "/ memcpy", "memcpy us"}};
  for (const Point& point : points) {
    if (point.state == state) rows.push_back(row_of(point));
  }
  return table(rows);
}

/// Returns the table of one cache state of --tune.
std::string tuning_table(const std::vector<Point>& points, CacheState state) {
  std::vector<Row> rows{
      {"size", "one-shot us", "quartiles", "two-shot us", "quartiles", "one-shot / two-shot"}};
  for (const Point& point : points) {
    if (point.state != state) continue;
    const Spread &one = point.measured[0].net, &two = point.measured[1].net;
    rows.push_back({size_text(point.bytes), fmt::format("{:.2f}", one.median_us), quartiles(one),
                    fmt::format("{:.2f}", two.median_us), quartiles(two),
                    fmt::format("{:.2f}", one.median_us / two.median_us)});
  }
  return table(rows);
}

using Limit = std::optional<OneShotLimit>;  // nullopt if the ranks share no memory

std::string limit_text(const Limit& limit) {
  return limit ? fmt::format("one-shot up to {} bytes ({})", limit->bytes, name(limit->from))
               : "no shared memory";
}

nlohmann::ordered_json limit_json(const Limit& limit) {
  if (!limit) return nullptr;
  return {{"bytes", limit->bytes}, {"source", name(limit->from)}};
}

using TableOf = std::string (*)(const std::vector<Point>&, CacheState);

std::string to_text(const CommOptions& o, const AllReduceBench& measurement, const Limit& limit,
                    const std::vector<Point>& points, TableOf table_of_state) {
  std::string text =
      fmt::format("{} ranks, {}, {}, {}; time per call on the slowest rank, median of the repetitions\n",
                  o.tp, o.dtype, limit_text(limit), base::cpu_name());
  for (const CacheState state : measurement.states) {
    text += state == CacheState::warm
                ? "warm: the tensor is as the last call left it\n"
                : "rewritten: the tensor is written before every call; the time of writing is subtracted\n";
    text += table_of_state(points, state);
  }
  return text;
}

nlohmann::ordered_json to_json(const CommOptions& o, const Limit& limit, const std::vector<Point>& points) {
  const char* method = "Group::all_reduce_ from C++, one process with one thread per rank";
  nlohmann::ordered_json json =
      to_json(bench::Document{"shardwise", SHARDWISE_VERSION, method, o.tp, o.dtype, points});
  json["one_shot"] = limit_json(limit);
  return json;
}

/// Shows progress on the progress line, which is erased at the end.
template <class Measure>
std::vector<Point> measure_with_progress(const Measure& measure) {
  ProgressLine line;
  return measure([&](const bench::PointProgress& at) {
    line.show(fmt::format("bench comm: {} {}, point {} of {}, repetition {} of {}", size_text(at.bytes),
                          name_of(at.state), at.point, at.points, at.repetition, at.repetitions));
  });
}

void run_bench(const CommOptions& o, const AllReduceBench& measurement, const comm::Group& group) {
  const Limit limit = comm::shm::one_shot_limit(group);
  const auto points = measure_with_progress([&](const bench::OnPointProgress& on_progress) {
    return bench::measure_all_reduce(measurement, group, on_progress);
  });
  if (group.rank() != 0) return;
  print(o.json ? json_line(to_json(o, limit, points)) : to_text(o, measurement, limit, points, table_of));
}

/// Measures both algorithms and saves the limit for later groups; existing groups keep theirs.
void run_tune(const CommOptions& o, const AllReduceBench& measurement, const comm::Group& group,
              const bench::BothAlgorithms& algorithms) {
  const Limit before = comm::shm::one_shot_limit(group);
  const auto points = measure_with_progress([&](const bench::OnPointProgress& on_progress) {
    return bench::measure_both(measurement, algorithms, on_progress);
  });
  if (group.rank() != 0) return;
  const comm::RanksOnCores on = before->on;
  const OneShotLimit found{on, bench::best_one_shot_bytes(points), OneShotLimit::From::measured};
  comm::shm::save_one_shot_limit(on, found.bytes);
  const std::string file = comm::shm::one_shot_file(on);
  nlohmann::ordered_json json = to_json(o, before, points);
  json["tuned"] = {{"bytes", found.bytes}, {"core_per_rank", on.core_each}, {"file", file}};
  print(o.json ? json_line(json)
               : to_text(o, measurement, before, points, tuning_table) +
                     fmt::format("saved for later runs: {}, in {}\n", limit_text(found), file));
}

}  // namespace

int bench_comm_command(const Call& call) {
  CommOptions o;
  RankOptions ranks;
  Flags flags("bench comm", "Times all_reduce on ranks of this machine, next to a memcpy of the same size.");
  add_flags(flags, o);
  add_timeout_flag(flags, ranks);
  if (!flags.parse(call.arguments)) return 0;
  validate("bench comm", ranks);
  const AllReduceBench measurement = bench_of(o);
  if (o.tune) prepare_measured_file("bench comm", "--tune", comm::shm::one_shot_file({}));
  const launch::LaunchContext context = launch_context_for(o.tp);
  return run_on_ranks({context, o.tp, ranks, call.argv}, [&](const comm::Group& group) {
    if (!o.tune) return run_bench(o, measurement, group);
    if (!group.has_symmetric_heap()) {
      throw base::CollectiveError("bench comm: --tune needs ranks of one node; got several nodes [SW0089]");
    }
    run_tune(o, measurement, group, bench::connect_both(group, context.job + "/tune", timeout_of(ranks)));
  });
}

}  // namespace shardwise::cli
